"""Values of scalar fields in protobuf's text format: integers, floats, bools, enums and strings.

Integers are decimal, octal (0...) or hex (0x...); floats decimal, with an `f` behind them if one likes, or `inf` or
`nan`; enums a name or a number; strings in either quotes with the escapes of C.
"""

from __future__ import annotations

import re

from google.protobuf.descriptor import FieldDescriptor

from poseidon.spec.names import nearest_name
from poseidon.spec.tokens import Kind, Token

_INTEGER = re.compile(r"0[xX](?P<hex>[0-9a-fA-F]+)|0(?P<octal>[0-7]+)|(?P<decimal>0|[1-9][0-9]*)")
_FLOAT = re.compile(r"((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?[fF]?")
# More digits than any 64-bit number has: refused without computing the value, which takes quadratic time.
_MAX_INTEGER_CHARS = 32
_RANGES = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
}
_BOOLS = {"true": True, "True": True, "t": True, "1": True, "false": False, "False": False, "f": False, "0": False}
_NOT_FINITE = {"inf": float("inf"), "infinity": float("inf"), "nan": float("nan")}
_ESCAPE = re.compile(
    rb"\\(?:(?P<octal>[0-7]{1,3})|[xX](?P<hex>[0-9a-fA-F]{1,2})|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})"
    rb"|(?P<letter>.))",
    re.DOTALL,
)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_LETTERS |= {character: character for character in (b"\\", b"'", b'"', b"?")}
_MAX_CODE_POINT = 0x10FFFF


def describe(field: FieldDescriptor) -> str:
    """What a value of this field looks like."""
    if field.type in _RANGES:
        low, high = _RANGES[field.type]
        return f"an integer from {low} to {high}"
    if field.type == FieldDescriptor.TYPE_ENUM:
        return "one of " + ", ".join(value.name for value in field.enum_type.values)
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return "a number"
    return "true or false" if field.type == FieldDescriptor.TYPE_BOOL else "a string in quotes"


def suggest(field: FieldDescriptor, token: Token) -> str:
    """ "; did you mean 'MAX'?" for an enum's value nearly met, or nothing."""
    if field.type != FieldDescriptor.TYPE_ENUM:
        return ""
    match = nearest_name(token.text.strip("\"'"), (value.name for value in field.enum_type.values))
    return f"; did you mean '{match}'?" if match else ""


def plain_value(field: FieldDescriptor, token: Token, negative: bool) -> int | float | bool | None:
    """The value of a token that is not a string, or None if it is no value of this field."""
    if token.kind not in (Kind.NAME, Kind.NUMBER):
        return None
    if field.type in _RANGES:
        low, high = _RANGES[field.type]
        number = _integer(token.text, negative)
        return number if number is not None and low <= number <= high else None
    if field.type == FieldDescriptor.TYPE_ENUM:
        return _enum(field, token, negative)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return None if negative else _BOOLS.get(token.text)
    return _float(token.text, negative)


def _integer(text: str, negative: bool) -> int | None:
    match = _INTEGER.fullmatch(text) if len(text) <= _MAX_INTEGER_CHARS else None
    if match is None:
        return None
    base = {"hex": 16, "octal": 8, "decimal": 10}[str(match.lastgroup)]
    magnitude = int(match[str(match.lastgroup)], base)
    return -magnitude if negative else magnitude


def _float(text: str, negative: bool) -> float | None:
    magnitude = _NOT_FINITE.get(text.lower())
    if magnitude is None and _FLOAT.fullmatch(text):
        magnitude = float(text.rstrip("fF"))
    return -magnitude if negative and magnitude is not None else magnitude


def _enum(field: FieldDescriptor, token: Token, negative: bool) -> int | None:
    if token.kind is Kind.NUMBER:
        number = _integer(token.text, negative)
        return number if number in field.enum_type.values_by_number else None
    value = None if negative else field.enum_type.values_by_name.get(token.text)
    return None if value is None else int(value.number)


def unescape(text: str) -> bytes:
    """The bytes of a string's inside; raises ValueError with the first escape or character that is none."""
    try:
        # Bytes that were not UTF-8 arrive as lone surrogates; this gives them back.
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(ascii(text[error.start])) from None
    return _ESCAPE.sub(_escaped, raw)


def _escaped(match: re.Match[bytes]) -> bytes:
    kind, digits = str(match.lastgroup), match[str(match.lastgroup)]
    if kind == "letter" and digits in _LETTERS:
        return _LETTERS[digits]
    if kind in ("octal", "hex"):
        byte = int(digits, 8 if kind == "octal" else 16)
        if byte < 256:
            return bytes([byte])
    if kind in ("short", "long"):
        code_point = int(digits, 16)
        if code_point <= _MAX_CODE_POINT and not 0xD800 <= code_point < 0xE000:
            return chr(code_point).encode()
    raise ValueError(match.group().decode("utf-8", "replace"))
