"""A look at protobuf's wire format without building messages: to bound what a file makes us build, and to say what is
wrong.

A message is a sequence of fields, each a varint tag `number * 8 + wire type` and a value: a varint (0), 8 bytes (1),
a varint length and as many bytes (2), or 4 bytes (5). Types 3 and 4 bracket groups, which Caffe's schema does not
have; the fields in an unknown group are walked like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor

from poseidon.spec.limits import MAX_FIELDS, MAX_MESSAGES

VARINT, FIXED64, BYTES, GROUP_START, GROUP_END, FIXED32 = range(6)
_MAX_VARINT_BYTES = 10


class WireError(Exception):
    """The bytes are not a sequence of fields."""


class WireField(NamedTuple):  # a dataclass takes several times as long to make, and a file may hold a million
    """A field's number and type, and where its value lies; for BYTES, without the length."""

    number: int
    wire_type: int
    start: int
    end: int


def encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _decode_varint(data: bytes, offset: int, end: int) -> tuple[int, int]:
    """The value at `offset`, and the offset behind it."""
    if offset < end and data[offset] < 0x80:  # nearly all are of one byte
        return data[offset], offset + 1
    value = 0
    for count in range(_MAX_VARINT_BYTES):
        if offset + count >= end:
            raise WireError(f"truncated at byte {end}: a number begins at byte {offset} and does not end")
        byte = data[offset + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, offset + count + 1
    raise WireError(f"damaged at byte {offset}: a number of more than {_MAX_VARINT_BYTES} bytes")


def varint_of(data: bytes, field: WireField) -> int:
    """The value of a VARINT field."""
    return _decode_varint(data, field.start, field.end)[0]


def packed_varints(data: bytes, field: WireField) -> Iterator[int]:
    """The values of a BYTES field that holds one varint after the other."""
    offset = field.start
    while offset < field.end:
        value, offset = _decode_varint(data, offset, field.end)
        yield value


def wire_fields(data: bytes, start: int, end: int) -> Iterator[WireField]:
    """The fields of the message in `data[start:end]`; raises WireError at the first that is no field."""
    offset = start
    while offset < end:
        tag_offset = offset
        tag, offset = _decode_varint(data, offset, end)
        number, wire_type = tag >> 3, tag & 7
        if number == 0 or wire_type > FIXED32:
            raise WireError(f"damaged at byte {tag_offset}: field number {number} of wire type {wire_type}")
        value_offset = offset
        if wire_type == BYTES:
            size_bytes, value_offset = _decode_varint(data, offset, end)
            offset = value_offset + size_bytes
        elif wire_type == VARINT:
            _, offset = _decode_varint(data, offset, end)
        else:
            offset += {FIXED64: 8, FIXED32: 4}.get(wire_type, 0)
        if offset > end:
            raise WireError(
                f"truncated at byte {end}: field {number} at byte {tag_offset} has {offset - value_offset} bytes, "
                f"{end - value_offset} are there"
            )
        yield WireField(number, wire_type, value_offset, offset)


def find_fault(data: bytes) -> str | None:
    """What is wrong with the outermost fields, or None if they look well formed."""
    try:
        for _ in islice(wire_fields(data, 0, len(data)), MAX_FIELDS):
            pass
    except WireError as error:
        return str(error)
    return None


def find_excess(data: bytes, descriptor: Descriptor) -> str | None:
    """More messages or fields than any net has, or None. Only messages that hold repeated messages are entered: the
    others grow in memory no more than in the file. Damaged parts count as far as they can be read."""
    num_messages = num_fields = 0
    spans = [(0, len(data), descriptor)] if _holds_repeated_messages(descriptor) else []
    while spans:
        start, end, message = spans.pop()
        try:
            for field in wire_fields(data, start, end):
                num_fields += 1
                known = message.fields_by_number.get(field.number) if field.wire_type == BYTES else None
                if known is not None and known.message_type is not None:
                    num_messages += known.is_repeated
                    if _holds_repeated_messages(known.message_type):
                        spans.append((field.start, field.end, known.message_type))
                if num_messages > MAX_MESSAGES or num_fields > MAX_FIELDS:
                    return f"more than {MAX_MESSAGES} messages or {MAX_FIELDS} fields"
        except WireError:
            continue  # the parser will refuse the whole file, with the reason
    return None


@cache
def _holds_repeated_messages(descriptor: Descriptor) -> bool:
    return any(
        field.is_repeated or _holds_repeated_messages(field.message_type)
        for field in descriptor.fields
        if field.message_type is not None
    )
