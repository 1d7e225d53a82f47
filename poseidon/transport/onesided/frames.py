"""Frames: what travels on a connection between two workers. A header of 32 bytes, then `length` bytes.

    PUT       bytes for [offset, offset + length) of `segment`; a value other than 0 appears under `id` afterwards
    READ      asks for [offset, offset + value) of `segment`; `id` is the asker's number for the answer
    DATA      the answer to READ number `id`: bytes from `offset` of what was asked for; `value` is 1 with the last
    SEGMENT   the sender has a segment of `value` bytes, which begins at `offset` of its shared memory
    BEAT      a sign of life
    LOST      JSON: who is lost, and why; the sender ends
    BYE       the sender leaves in peace

Long puts are cut into frames of at most MAX_FRAME_BYTES, so that urgent ones can pass between them; the notification
goes with the last. Little endian.
"""

from __future__ import annotations

import struct

MAX_FRAME_BYTES = 1 << 20
MAX_TEXT_BYTES = 1 << 16

HEADER = struct.Struct("<BxxxIQIIQ")
HEADER_BYTES = HEADER.size


PUT, READ, DATA, SEGMENT, BEAT, LOST, BYE = range(1, 8)  # plain numbers: one comparison per message counts


def header(kind: int, *, segment: int = 0, offset: int = 0, length: int = 0, id: int = 0, value: int = 0) -> bytes:
    return HEADER.pack(kind, segment, offset, length, id, value)
