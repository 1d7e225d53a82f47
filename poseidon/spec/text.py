"""Prototxt, protobuf's text format, read into messages.

Accepted is what Caffe's own reader accepts: `name: value`, `name { ... }`, `name: { ... }`, `name < ... >`, lists
`name: [a, b]` for repeated fields, an optional `,` or `;` after each field, `#` comments, strings in either quotes,
adjacent strings joined, enums by name or number, numbers in decimal, octal or hex, `inf` and `nan`. A field that is
not repeated may be given once.

The schema has no message inside itself, so the schema and not the text bounds the depth of the recursion here.
"""

from __future__ import annotations

import re
from typing import TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from poseidon.errors import SpecError
from poseidon.spec.names import nearest_name
from poseidon.spec.tokens import Kind, Source, Token

MessageT = TypeVar("MessageT", bound=Message)
Scalar = int | float | bool | str | bytes

_INTEGER = re.compile(r"0[xX](?P<hex>[0-9a-fA-F]+)|0(?P<octal>[0-7]+)|(?P<decimal>0|[1-9][0-9]*)")
_FLOAT = re.compile(r"(?:0|[1-9][0-9]*|[0-9]*\.[0-9]+|[0-9]+\.)(?:[eE][+-]?[0-9]+)?[fF]?|[0-9]+[eE][+-]?[0-9]+[fF]?")
_RANGES = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
}
_BOOLS = {"true": True, "True": True, "t": True, "1": True, "false": False, "False": False, "f": False, "0": False}
_NOT_FINITE = {"inf": float("inf"), "infinity": float("inf"), "nan": float("nan")}
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([^0-7xXuU]))")
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPED |= {character: character for character in (b"\\", b"'", b'"', b"?")}
# More digits than any 64-bit number has: refused without computing the value, which takes quadratic time.
_MAX_DIGITS = 32


def parse(text: str, message: MessageT, filename: str = "<text>") -> MessageT:
    """Fill `message` from prototxt and return it."""
    parse_located(text, message, filename)
    return message


def parse_located(text: str, message: Message, filename: str = "<text>") -> dict[str, list[int]]:
    """Fill `message`; the result gives, for each field at the top of the text, the lines where it occurs."""
    parser = _Parser(Source(text, filename))
    lines = parser.parse_top(message)
    missing = message.FindInitializationErrors()
    if missing:
        raise SpecError(f"{filename}: found no {missing[0]}, expected a value: the field is required")
    return lines


def _describe(field: FieldDescriptor) -> str:
    """What a value of this field looks like."""
    if field.type in _RANGES:
        low, high = _RANGES[field.type]
        return f"an integer from {low} to {high}"
    if field.type == FieldDescriptor.TYPE_ENUM:
        return "one of " + ", ".join(value.name for value in field.enum_type.values)
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return "a number"
    return "true or false" if field.type == FieldDescriptor.TYPE_BOOL else "a string in quotes"


class _Parser:
    """Recursive descent over the tokens, one token ahead."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tokens = source.tokens()
        self._token = next(self._tokens)

    def parse_top(self, message: Message) -> dict[str, list[int]]:
        lines: dict[str, list[int]] = {}
        while self._token.kind is not Kind.END:
            line = self._source.line(self._token.offset)
            name, count = self._field(message)
            lines.setdefault(name, []).extend([line] * count)
        return lines

    def _advance(self) -> Token:
        token = self._token
        if token.kind is not Kind.END:
            self._token = next(self._tokens)
        return token

    def _try_symbol(self, *symbols: str) -> str | None:
        if self._token.kind is Kind.SYMBOL and self._token.text in symbols:
            return self._advance().text
        return None

    def _fail(self, token: Token, expected: str, hint: str = "") -> SpecError:
        return self._source.error(token.offset, token, expected, hint)

    def _field(self, message: Message) -> tuple[str, int]:
        """One `name: value`; returns the field's name and the number of values."""
        token = self._token
        field = self._field_named(token, message.DESCRIPTOR)
        self._advance()
        if not field.is_repeated and message.HasField(field.name):
            raise self._source.error(
                token.offset, f"a second '{field.name}'", f"'{field.name}' at most once in {message.DESCRIPTOR.name}"
            )
        colon = self._try_symbol(":")
        if field.message_type is None and colon is None:
            raise self._fail(self._token, f"':' after '{field.name}'")
        count = self._list(message, field) if field.is_repeated and self._try_symbol("[") else self._one(message, field)
        self._try_symbol(",", ";")
        return field.name, count

    def _field_named(self, token: Token, descriptor: Descriptor) -> FieldDescriptor:
        field: FieldDescriptor | None = None
        if token.kind is Kind.NAME:
            field = descriptor.fields_by_name.get(token.text)
        if field is not None:
            return field
        match = nearest_name(token.text, descriptor.fields_by_name) if token.kind is Kind.NAME else None
        raise self._fail(token, f"a field of {descriptor.name}", f"; did you mean '{match}'?" if match else "")

    def _list(self, message: Message, field: FieldDescriptor) -> int:
        count = 0
        if self._try_symbol("]"):
            return count
        while True:
            count += self._one(message, field)
            if self._try_symbol("]"):
                return count
            if not self._try_symbol(","):
                raise self._fail(self._token, f"',' or ']' in the list of '{field.name}'")

    def _one(self, message: Message, field: FieldDescriptor) -> int:
        if field.message_type is not None:
            self._message(message, field)
        elif field.is_repeated:
            getattr(message, field.name).append(self._scalar(field))
        else:
            setattr(message, field.name, self._scalar(field))
        return 1

    def _message(self, parent: Message, field: FieldDescriptor) -> None:
        opening = self._token
        bracket = self._try_symbol("{", "<")
        if bracket is None:
            raise self._fail(opening, f"'{{' to open '{field.name}', a {field.message_type.name}")
        closing = "}" if bracket == "{" else ">"
        child: Message = getattr(parent, field.name).add() if field.is_repeated else getattr(parent, field.name)
        child.SetInParent()
        while not self._try_symbol(closing):
            if self._token.kind is not Kind.NAME:
                line = self._source.line(opening.offset)
                end = f"the '{closing}' that closes '{field.name}' of line {line}"
                raise self._fail(self._token, f"a field of {field.message_type.name}, or {end}")
            self._field(child)

    def _scalar(self, field: FieldDescriptor) -> Scalar:
        if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            return self._string(field)
        start = self._token
        negative = self._try_symbol("-") is not None
        token = self._token
        value = self._plain(field, token, negative)
        if value is None:
            shown = self._source_words(start, token)
            raise self._source.error(
                start.offset, shown, f"{_describe(field)} for '{field.name}'", self._hint(field, token)
            )
        self._advance()
        return value

    @staticmethod
    def _source_words(start: Token, token: Token) -> object:
        return start if start is token else Token(token.kind, start.text + token.text, start.offset)

    @staticmethod
    def _hint(field: FieldDescriptor, token: Token) -> str:
        if field.type != FieldDescriptor.TYPE_ENUM:
            return ""
        match = nearest_name(token.text.strip("\"'"), (value.name for value in field.enum_type.values))
        return f"; did you mean '{match}'?" if match else ""

    def _plain(self, field: FieldDescriptor, token: Token, negative: bool) -> Scalar | None:
        """The value of a token that is not a string, or None if it is none of this field's."""
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
        magnitude = _NOT_FINITE.get(token.text.lower())
        if magnitude is None and _FLOAT.fullmatch(token.text):
            magnitude = float(token.text.rstrip("fF"))
        return -magnitude if negative and magnitude is not None else magnitude

    def _string(self, field: FieldDescriptor) -> str | bytes:
        first = self._token
        if first.kind is not Kind.STRING:
            raise self._fail(first, f"a string in quotes for '{field.name}'")
        joined = b""
        while self._token.kind is Kind.STRING:
            token = self._advance()
            joined += self._unescape(token)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return joined
        try:
            return joined.decode()
        except UnicodeDecodeError as error:
            byte = joined[error.start]
            raise self._source.error(
                first.offset, f"byte 0x{byte:02x}", f"UTF-8 in the string for '{field.name}'"
            ) from None

    def _unescape(self, token: Token) -> bytes:
        def replace(match: re.Match[bytes]) -> bytes:
            octal, short_hex, *unicode_hex, character = match.groups()
            if octal is not None and int(octal, 8) < 256:
                return bytes([int(octal, 8)])
            if short_hex is not None:
                return bytes([int(short_hex, 16)])
            for digits in unicode_hex:
                if digits is not None and int(digits, 16) < 0x110000:
                    return chr(int(digits, 16)).encode("utf-8", "surrogatepass")
            if character in _ESCAPED:
                return _ESCAPED[character]
            raise self._source.error(token.offset, repr(match.group().decode("latin-1")), "an escape that C knows")

        try:
            # Bytes that were not UTF-8 arrive as lone surrogates; this gives them back.
            raw = token.text[1:-1].encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            character = token.text[error.start + 1]
            raise self._source.error(token.offset, repr(character), "characters that UTF-8 has in a string") from None
        return _ESCAPE.sub(replace, raw)


def _integer(text: str, negative: bool) -> int | None:
    match = _INTEGER.fullmatch(text) if len(text) <= _MAX_DIGITS else None
    if match is None:
        return None
    base = {"hex": 16, "octal": 8, "decimal": 10}[str(match.lastgroup)]
    magnitude = int(match[match.lastgroup or 0], base)
    return -magnitude if negative else magnitude


def _enum(field: FieldDescriptor, token: Token, negative: bool) -> int | None:
    if token.kind is Kind.NUMBER:
        number = _integer(token.text, negative)
        return number if number in field.enum_type.values_by_number else None
    value = None if negative else field.enum_type.values_by_name.get(token.text)
    return None if value is None else int(value.number)
