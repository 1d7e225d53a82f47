"""Messages in protobuf's binary format: caffemodel, solverstate, binaryproto and database records.

What is read may be damaged or made to harm: the size is checked before reading, the number of messages before
building them, and strings and required fields afterwards. Protobuf itself ends at 2 GiB.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from poseidon.errors import SpecError
from poseidon.spec.caffe_pb2 import NetParameter
from poseidon.spec.files import read_bytes, write_atomically
from poseidon.spec.forks import settle_numbers
from poseidon.spec.limits import MAX_BINARY_BYTES
from poseidon.spec.source import log_problems
from poseidon.spec.upgrade import upgrade_net
from poseidon.spec.wire import find_excess, find_fault

MessageT = TypeVar("MessageT", bound=Message)


def read_binary(path: str | os.PathLike[str], message_class: type[MessageT]) -> MessageT:
    """The message in a binary file."""
    advice = "protobuf cannot hold more; use HDF5 (.h5) for larger weights and states"
    return parse_binary(read_bytes(path, MAX_BINARY_BYTES, advice), message_class, os.fspath(path))


def parse_binary(data: bytes, message_class: type[MessageT], what: str = "<bytes>") -> MessageT:
    """The message in `data`; `what` names it in errors."""
    descriptor: Descriptor = message_class.DESCRIPTOR
    excess = find_excess(data, descriptor)
    if excess is not None:
        raise SpecError(f"{what}: found {excess} in a {descriptor.name}, expected far fewer: refused")
    message: MessageT = message_class()
    try:
        message.ParseFromString(settle_numbers(data) if message_class is NetParameter else data)
    except (DecodeError, UnicodeDecodeError):  # the latter from protobuf's pure Python implementation only
        raise SpecError(f"{what}: not a {descriptor.name}: {_diagnose(data)}") from None
    missing = message.FindInitializationErrors()
    if missing:
        raise SpecError(f"{what}: found no {missing[0]}, expected a value: the field is required")
    if _holds_strings(descriptor):
        _check_strings(message, what, descriptor.name)
    return message


def write_binary(message: Message, path: str | os.PathLike[str]) -> None:
    """Write the message to a file, whole or not at all."""
    write_atomically(serialize(message, os.fspath(path)), path)


def serialize(message: Message, what: str = "<bytes>") -> bytes:
    """The message in binary; `what` names it in errors."""
    name = message.DESCRIPTOR.name
    missing = message.FindInitializationErrors()
    if missing:
        raise SpecError(f"{what}: found no {missing[0]} in the {name}, expected a value: the field is required")
    try:
        data: bytes = message.SerializeToString()
    except EncodeError as error:
        raise SpecError(f"{what}: the {name} cannot be written: {error}") from None
    if len(data) > MAX_BINARY_BYTES:
        raise SpecError(
            f"{what}: the {name} has {len(data)} bytes, expected at most {MAX_BINARY_BYTES}, protobuf's limit; "
            "write HDF5 (.h5) instead"
        )
    return data


def read_weights_proto(path: str | os.PathLike[str]) -> NetParameter:
    """The net with its weights in a caffemodel of any age, in the current format."""
    net = read_binary(path, NetParameter)
    name = os.fspath(path)
    log_problems(upgrade_net(net, lambda index: f"{name}: layer {index}"))
    if not net.layer:
        raise SpecError(f"{name}: found no layers, expected the weights of a net; is this a caffemodel?")
    return net


def _diagnose(data: bytes) -> str:
    head = data[:256]
    if head and all(0x20 <= byte < 0x7F or byte in b"\t\r\n" for byte in head):
        return "it is text; read it as prototxt"
    fault = find_fault(data) or "damaged inside a field"
    return f"{fault}; copy or download the file again"


@cache
def _holds_strings(descriptor: Descriptor) -> bool:
    return any(
        field.type == FieldDescriptor.TYPE_STRING
        or (field.message_type is not None and _holds_strings(field.message_type))
        for field in descriptor.fields
    )


def _check_strings(message: Message, what: str, path: str) -> None:
    """Refuse strings that are not UTF-8: protobuf reads them, but hands them out as bytes."""
    for field, value in message.ListFields():
        items = value if field.is_repeated else [value]
        if field.type == FieldDescriptor.TYPE_STRING:
            for item in items:
                if not isinstance(item, str):
                    raise SpecError(f"{what}: found {bytes(item)[:40]!r} in {path}.{field.name}, expected UTF-8")
        elif field.message_type is not None and _holds_strings(field.message_type):
            for item in items:
                _check_strings(item, what, f"{path}.{field.name}")
