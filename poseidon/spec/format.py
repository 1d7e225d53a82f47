"""Messages written as prototxt, the way Caffe's tools write them.

One field a line in order of the field numbers, two spaces a level, floats in as few digits as identify them (0.01, 1,
1e-08), characters outside printable ASCII as octal escapes of their UTF-8 bytes.
"""

from __future__ import annotations

import os
import struct

from google.protobuf import text_encoding
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from poseidon.spec.files import write_atomically

_FLOAT_DIGITS = range(6, 10)
_DOUBLE_DIGITS = range(15, 18)


def format_message(message: Message) -> str:
    """The message as prototxt; parsing it gives an equal message."""
    return "".join(f"{line}\n" for line in _lines(message, ""))


def write_text(message: Message, path: str | os.PathLike[str]) -> None:
    """Write the message to a prototxt file, whole or not at all."""
    write_atomically(format_message(message).encode(), path)


def _lines(message: Message, indent: str) -> list[str]:
    lines = []
    for field, value in message.ListFields():
        for item in value if field.is_repeated else [value]:
            if field.message_type is None:
                lines.append(f"{indent}{field.name}: {_scalar(field, item)}")
            else:
                lines += [f"{indent}{field.name} {{", *_lines(item, indent + "  "), f"{indent}}}"]
    return lines


def _scalar(field: FieldDescriptor, value: int | float | bool | str | bytes) -> str:
    if isinstance(value, (str, bytes)):
        return (
            '"' + str(text_encoding.CEscape(value if isinstance(value, bytes) else value.encode(), as_utf8=False)) + '"'
        )
    if field.type == FieldDescriptor.TYPE_BOOL:
        return "true" if value else "false"
    if field.type == FieldDescriptor.TYPE_ENUM:
        return str(field.enum_type.values_by_number[int(value)].name)
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return _shortest(value, _FLOAT_DIGITS, "f")
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return _shortest(value, _DOUBLE_DIGITS, "d")
    return str(value)


def _shortest(value: float, digits: range, code: str) -> str:
    """The first of the given precisions that reads back as the same value of this width."""
    if value != value:
        return "nan"
    for precision in digits:
        text = f"{value:.{precision}g}"
        try:
            if struct.unpack(code, struct.pack(code, float(text)))[0] == value:
                return text
        except OverflowError:  # rounded up beyond the largest float: needs more digits
            continue
    return text
