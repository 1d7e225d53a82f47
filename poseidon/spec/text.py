"""Prototxt, protobuf's text format, read into messages.

Accepted is what Caffe's own reader accepts: `name: value`, `name { ... }`, `name: { ... }`, `name < ... >`, lists
`name: [a, b]` for repeated fields, an optional `,` or `;` after each field, adjacent strings joined, `#` comments. A
field that is not repeated may be given once.

The schema has no message inside itself, so the schema and not the text bounds the depth of the recursion here.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from poseidon.errors import SpecError
from poseidon.spec.caffe_pb2 import NetParameter, SolverParameter
from poseidon.spec.limits import MAX_MESSAGES
from poseidon.spec.names import nearest_name
from poseidon.spec.tokens import Kind, Source, Token
from poseidon.spec.values import describe, plain_value, suggest, unescape

MessageT = TypeVar("MessageT", bound=Message)

_MAX_HOLDERS = 4


def parse(text: str, message: MessageT, filename: str = "<text>") -> MessageT:
    """Fill `message` from prototxt and return it; `filename` is for errors."""
    parse_located(text, message, filename)
    return message


def parse_located(text: str, message: Message, filename: str = "<text>") -> dict[str, list[int]]:
    """Fill `message`; the result gives, for each field at the top of the text, the line of each of its values."""
    return _Parser(Source(text, filename)).parse_top(message)


class _Parser:
    """Recursive descent over the tokens, one token ahead."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tokens = source.tokens()
        self._token = next(self._tokens)
        self._num_messages = 0

    def parse_top(self, message: Message) -> dict[str, list[int]]:
        lines: dict[str, list[int]] = {}
        while self._token.kind is not Kind.END:
            name = self._token.text
            values = self._field(message)
            lines.setdefault(name, []).extend(self._source.line(value.offset) for value in values)
        self._check_required(message)
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

    def _field(self, message: Message) -> list[Token]:
        """One `name: value` or `name: [value, ...]`; returns where each value starts: the name, unless in a list."""
        token, descriptor = self._token, message.DESCRIPTOR
        field = descriptor.fields_by_name.get(token.text) if token.kind is Kind.NAME else None
        if field is None:
            raise self._fail(token, f"a field of {descriptor.name}", _suggest_field(token, descriptor))
        if not field.is_repeated and message.HasField(field.name):
            found, expected = f"a second '{field.name}'", f"'{field.name}' at most once in {descriptor.name}"
            raise self._source.error(token.offset, found, expected)
        self._advance()
        if not self._try_symbol(":") and field.message_type is None:
            raise self._fail(self._token, f"':' after '{field.name}'")
        values = [token]
        if field.is_repeated and self._try_symbol("["):
            values = self._list(message, field)
        else:
            self._value(message, field)
        self._try_symbol(",", ";")
        return values

    def _list(self, message: Message, field: FieldDescriptor) -> list[Token]:
        values: list[Token] = []
        if self._try_symbol("]"):
            return values
        while True:
            values.append(self._token)
            self._value(message, field)
            if self._try_symbol("]"):
                return values
            if not self._try_symbol(","):
                raise self._fail(self._token, f"',' or ']' in the list of '{field.name}'")

    def _value(self, message: Message, field: FieldDescriptor) -> None:
        if field.message_type is not None:
            self._message(message, field)
        elif field.is_repeated:
            getattr(message, field.name).append(self._scalar(field))
        else:
            setattr(message, field.name, self._scalar(field))

    def _message(self, parent: Message, field: FieldDescriptor) -> None:
        opening, kind = self._token, field.message_type.name
        bracket = self._try_symbol("{", "<")
        if bracket is None:
            raise self._fail(opening, f"'{{' to open '{field.name}', a {kind}")
        self._num_messages += 1
        if self._num_messages > MAX_MESSAGES:
            raise self._fail(opening, f"at most {MAX_MESSAGES} messages in a file")
        closing = "}" if bracket == "{" else ">"
        child: Message = getattr(parent, field.name).add() if field.is_repeated else getattr(parent, field.name)
        child.SetInParent()
        while self._token.kind is not Kind.SYMBOL or self._token.text != closing:
            if self._token.kind is not Kind.NAME:
                end = f"the '{closing}' that closes '{field.name}' of line {self._source.line(opening.offset)}"
                raise self._fail(self._token, f"a field of {kind}, or {end}")
            self._field(child)
        self._check_required(child)
        self._advance()

    def _check_required(self, message: Message) -> None:
        if not message.IsInitialized():
            missing = message.FindInitializationErrors()[0]
            raise self._fail(self._token, f"'{missing}' before it: {message.DESCRIPTOR.name} requires it")

    def _scalar(self, field: FieldDescriptor) -> int | float | bool | str | bytes:
        if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            return self._string(field)
        sign = self._token
        negative = self._try_symbol("-") is not None
        token = self._token
        value = plain_value(field, token, negative)
        if value is None:
            found = Token(token.kind, sign.text + token.text, sign.offset) if negative else token
            raise self._fail(found, f"{describe(field)} for '{field.name}'", suggest(field, token))
        self._advance()
        return value

    def _string(self, field: FieldDescriptor) -> str | bytes:
        first = self._token
        if first.kind is not Kind.STRING:
            raise self._fail(first, f"{describe(field)} for '{field.name}'")
        parts = []
        while self._token.kind is Kind.STRING:
            token = self._advance()
            try:
                parts.append(unescape(token.text[1:-1]))
            except ValueError as error:
                expected = f"UTF-8 text and escapes of C in the string for '{field.name}'"
                raise self._source.error(token.offset, error, expected) from None
        joined = b"".join(parts)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return joined
        try:
            return joined.decode()
        except UnicodeDecodeError as error:
            found, expected = f"byte 0x{joined[error.start]:02x}", f"UTF-8 text in the string for '{field.name}'"
            raise self._source.error(first.offset, found, expected) from None


def _suggest_field(token: Token, descriptor: Descriptor) -> str:
    """Where a field that this message does not have may belong, or which one may have been meant."""
    if token.kind is not Kind.NAME:
        return ""
    for here, other, kind in ((SolverParameter, NetParameter, "a net"), (NetParameter, SolverParameter, "a solver")):
        if descriptor == here.DESCRIPTOR and token.text in other.DESCRIPTOR.fields_by_name:
            return f"; is this {kind}?"
    holders = [
        field.name
        for field in descriptor.fields
        if field.message_type is not None and token.text in field.message_type.fields_by_name
    ]
    if 0 < len(holders) <= _MAX_HOLDERS:
        return f"; it belongs in {' or '.join(holders)}"
    match = nearest_name(token.text, descriptor.fields_by_name)
    return f"; did you mean '{match}'?" if match else ""
