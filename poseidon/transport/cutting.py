"""Cutting: into which messages our own collectives divide what they carry. Pure arithmetic; the simulator uses it too.

Measured on shaped 1 Gbit/s links, 4 and 8 hosts: two pieces per block already hide the wake-ups; more and smaller
pieces cost processor time (each is a message with its own wake-up), which the lab's hosts lack most. Blocks up to
DIRECT_BYTES cost latency only: one step to everybody instead of P−1 steps around the ring.
"""

from __future__ import annotations

PIECES_PER_BLOCK = 2
MIN_PIECE_BYTES = 256 << 10
MAX_PIECE_BYTES = 4 << 20
MAX_PART_BYTES = 1 << 20  # of an exchange: P−1 pieces of each open round lie in memory
DIRECT_BYTES = 32 << 10
OPEN_PIECES = 32
OPEN_ROUNDS = 4


def piece_elems(num_elems: int, elem_bytes: int, most_bytes: int) -> int:
    """How many elements a piece of a block has; the last piece has what is left."""
    wanted = -(-num_elems * elem_bytes // PIECES_PER_BLOCK)
    num_bytes = min(max(wanted, MIN_PIECE_BYTES), most_bytes)
    return max(1, num_bytes // elem_bytes)


def goes_straight(most_block_bytes: float) -> bool:
    """True if blocks of at most this size are gathered straight from everybody, not around the ring."""
    return most_block_bytes <= DIRECT_BYTES
