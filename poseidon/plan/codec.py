"""Codec: frozen dataclasses to JSON and back, by their type hints.

    dataclass ↔ object    tuple[T, …] ↔ list    enum ↔ its value    ∞ ↔ "inf"    int, float, str, bool, None as they are

The JSON is canonical (keys sorted, no spaces, floats in the shortest form that reads back to the same bits), so equal
objects have equal text. Reading trusts nothing: what is missing, unknown or of another type is a PlanError that says
where.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import sys
import types
import typing
from typing import Any, TypeVar

from poseidon.errors import PlanError

T = TypeVar("T")


def encode_json(value: Any) -> str:
    """A dataclass as canonical JSON."""
    return json.dumps(_encoded(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def decode_json(kind: type[T], text: str) -> T:
    """A dataclass from its JSON."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise PlanError(f"{kind.__name__}: expected JSON, got text that is none: {problem}") from None
    found = _decoded(kind, data, kind.__name__)
    assert isinstance(found, kind)
    return found


def _encoded(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _encoded_field(kind, getattr(value, name)) for name, kind in _fields(type(value)).items()}
    if isinstance(value, tuple):
        return [_encoded(entry) for entry in value]
    if isinstance(value, float) and value == math.inf:
        return "inf"
    return value


def _encoded_field(kind: Any, value: Any) -> Any:
    """An int in a field for floats is written as the float that will be read: equal objects, equal text."""
    return _encoded(float(value) if kind is float else value)


# Plans saved before there was a choice have no pattern: they are collective.
_SINCE_FORMAT_1 = "pattern"


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass and their types, in order."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _decoded(kind: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        inner = [option for option in typing.get_args(kind) if option is not type(None)]
        return None if data is None else _decoded(inner[0], data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise _mismatch(where, "a list", data)
        return tuple(_decoded(typing.get_args(kind)[0], entry, f"{where}[{i}]") for i, entry in enumerate(data))
    if dataclasses.is_dataclass(kind):
        return _decoded_dataclass(kind, data, where)
    if issubclass(kind, enum.Enum):
        return _decoded_enum(kind, data, where)
    return _decoded_plain(kind, data, where)


def _decoded_dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _mismatch(where, "an object", data)
    wanted = _fields(kind)
    missing = [name for name in wanted if name not in data and name != _SINCE_FORMAT_1]
    unknown = [name for name in data if name not in wanted]
    if missing or unknown:
        raise PlanError(
            f"{where}: expected the fields {', '.join(wanted)}; missing: {', '.join(missing) or 'none'}; "
            f"unknown: {', '.join(unknown) or 'none'}"
        )
    return kind(**{name: _decoded(wanted[name], data[name], f"{where}.{name}") for name in wanted if name in data})


def _decoded_enum(kind: Any, data: Any, where: str) -> Any:
    known = {member.value: member for member in kind}
    if not isinstance(data, str) or data not in known:
        raise _mismatch(where, f"one of {', '.join(known)}", data)
    return known[data]


def _decoded_plain(kind: Any, data: Any, where: str) -> Any:
    if kind is float and data == "inf":
        return math.inf
    if kind is float and type(data) is int and abs(data) <= sys.float_info.max:
        return float(data)
    if type(data) is not kind:
        raise _mismatch(where, f"a value of type {kind.__name__}", data)
    if kind is float and not math.isfinite(data):
        raise _mismatch(where, "a finite number", data)
    return data


def _mismatch(where: str, expected: str, data: Any) -> PlanError:
    return PlanError(f"{where}: expected {expected}, got {json.dumps(data)[:60]}")
