"""Choices: numbers drawn from a run of bytes, so that a fuzzer that changes the bytes changes what is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads its bytes from the front; once they are used up every choice is the first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def used_up(self) -> bool:
        return self._position >= len(self._data)

    def below(self, count: int) -> int:
        """A number from 0 to count - 1."""
        num_bytes = 1 if count <= 256 else 3
        taken = self._data[self._position : self._position + num_bytes]
        self._position += num_bytes
        return int.from_bytes(taken, "little") % count

    def one_of(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def rest(self) -> bytes:
        return self._data[self._position :]
