"""Frames: what travels on a connection between two workers. A header of 32 bytes, then `length` bytes.

    PUT       bytes for [offset, offset + length) of `segment`; a value other than 0 appears under `id` afterwards
    READ      asks for [offset, offset + value) of `segment`; `id` is the asker's number for the answer
    DATA      the answer to READ number `id`: bytes from `offset` of what was asked for; `value` is 1 with the last
    SEGMENT   the sender has a segment of `value` bytes, which begins at `offset` of its shared memory
    BEAT      a sign of life
    LOST      JSON: who is lost, and why; the sender ends
    BYE       the sender leaves in peace
    MESSAGE   bytes from `offset` of a message for the receive with the tag `value`; `segment` and `id` are the low and
              the high half of its whole length (`../messages.py`)

Long puts are cut into frames of at most MAX_FRAME_BYTES, so that urgent ones can pass between them; the notification
goes with the last. Little endian.
"""

from __future__ import annotations

import struct

from poseidon.errors import TransportError

MAX_FRAME_BYTES = 1 << 20
MAX_TEXT_BYTES = 1 << 16

HEADER = struct.Struct("<BxxxIQIIQ")
HEADER_BYTES = HEADER.size


PUT, READ, DATA, SEGMENT, BEAT, LOST, BYE, MESSAGE = range(1, 9)  # plain numbers: one comparison per message counts


def header(kind: int, *, segment: int = 0, offset: int = 0, length: int = 0, id: int = 0, value: int = 0) -> bytes:
    return HEADER.pack(kind, segment, offset, length, id, value)


def unexpected(rank: int, frame: tuple[int, ...]) -> TransportError:
    """The error of a frame that must not come."""
    kind, _, _, length, _, _ = frame
    if kind == PUT and length <= MAX_FRAME_BYTES:
        return no_place(rank, frame)
    if kind == DATA and length <= MAX_FRAME_BYTES:
        return _sent(rank, "an answer to a read that nobody asked for")
    return _sent(rank, f"a frame of kind {kind} with {length} bytes")


def no_place(rank: int, frame: tuple[int, ...]) -> TransportError:
    _, number, offset, length, _, _ = frame
    return _sent(rank, f"{length} bytes for {offset} of segment {number}, which has no such place")


def no_such_read(rank: int, frame: tuple[int, ...]) -> TransportError:
    _, number, offset, _, _, length = frame
    return _sent(rank, f"a read of {length} bytes at {offset} of segment {number}")


def _sent(rank: int, what: str) -> TransportError:
    return TransportError(f"rank {rank} sent {what}: are all workers of the job the same version?", (rank,))
