"""Words of protobuf's text format: names, numbers, strings and symbols, each with its place.

Whitespace and `#` comments separate words and are dropped. A sign is a symbol of its own, as in protobuf's tokenizer.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from poseidon.errors import SpecError

_WORD = re.compile(
    r"""
    (?P<space> [ \t\r\n\v\f]+ | \#[^\n]* )
  | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
  | (?P<number> \.?[0-9] (?: [eE][+-] | [A-Za-z0-9_.] )* )
  | (?P<string> "[^"\\\n]*(?:\\[^\n][^"\\\n]*)*" | '[^'\\\n]*(?:\\[^\n][^'\\\n]*)*' )
  | (?P<symbol> [][{}<>:;,./+-] )
    """,
    re.VERBOSE,
)
_SHOWN_CHARS = 40


class Kind(Enum):
    NAME = "name"
    NUMBER = "number"
    STRING = "string"
    SYMBOL = "symbol"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    offset: int

    def __str__(self) -> str:
        if self.kind is Kind.END:
            return "the end of the text"
        shown = self.text if len(self.text) <= _SHOWN_CHARS else self.text[:_SHOWN_CHARS] + "..."
        return shown if self.kind is Kind.STRING else f"'{shown}'"


class Source:
    """A text under its file's name: cuts it into tokens, and says where in the file an offset lies."""

    def __init__(self, text: str, filename: str) -> None:
        self._text = text.removeprefix("\ufeff")
        self._filename = filename
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", self._text))]

    def line(self, offset: int) -> int:
        return bisect_right(self._line_starts, offset)

    def error(self, offset: int, found: object, expected: str, hint: str = "") -> SpecError:
        line = self.line(offset)
        column = offset - self._line_starts[line - 1] + 1
        return SpecError(f"{self._filename}:{line}:{column}: found {found}, expected {expected}{hint}")

    def tokens(self) -> Iterator[Token]:
        """All tokens in order, the last one of kind END."""
        offset = 0
        while offset < len(self._text):
            match = _WORD.match(self._text, offset)
            if match is None:
                raise self._bad_character(offset)
            if match.lastgroup != "space":
                yield Token(Kind(match.lastgroup), match.group(), offset)
            offset = match.end()
        yield Token(Kind.END, "", offset)

    def _bad_character(self, offset: int) -> SpecError:
        character = self._text[offset]
        if character in "\"'":
            return self.error(
                offset, f"a string that opens with {character}", f"a closing {character} on the same line"
            )
        if character == "\0" or "\udc80" <= character <= "\udcff":
            byte = ord(character) & 0xFF
            return self.error(
                offset,
                f"byte 0x{byte:02x}",
                "text in UTF-8",
                "; is this a binary file? Weights and states are not text",
            )
        return self.error(offset, repr(character), "a name, a number, a string or one of { } < > [ ] : ; ,")
