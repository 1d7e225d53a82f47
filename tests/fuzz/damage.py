"""Files damaged in the ways disks, networks and attackers damage them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.fuzz.choices import Choices

# Lengths, counts and tags in wrong places: varints from one to ten bytes, and what fixed-size fields read as huge.
_RUNS = [
    *(b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\x80\x01", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01"),
    *(b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80", b"\xff" * 8, b"\x00" * 8, b"\x00\x00\x80\x7f", b"\x00\x00\xc0\x7f"),
]


def damaged(files: Sequence[bytes], choices: Choices, most: int = 6) -> bytes:
    """One of the files, changed once for as long as there are bytes to choose by."""
    data = choices.one_of(files)
    for _ in range(most):
        if choices.used_up or not data:
            break
        data = choices.one_of(_DAMAGES)(data, choices)
    return data


def _flipped(data: bytes, choices: Choices) -> bytes:
    place = choices.below(len(data))
    return data[:place] + bytes([data[place] ^ 1 << choices.below(8)]) + data[place + 1 :]


def _overwritten(data: bytes, choices: Choices) -> bytes:
    place, run = choices.below(len(data)), choices.one_of(_RUNS)
    return data[:place] + run + data[place + len(run) :]


def _inserted(data: bytes, choices: Choices) -> bytes:
    place = choices.below(len(data))
    return data[:place] + choices.one_of(_RUNS) + data[place:]


def _cut_short(data: bytes, choices: Choices) -> bytes:
    return data[: choices.below(len(data))]


def _piece_lost(data: bytes, choices: Choices) -> bytes:
    place = choices.below(len(data))
    return data[:place] + data[place + 1 + choices.below(64) :]


def _piece_doubled(data: bytes, choices: Choices) -> bytes:
    place = choices.below(len(data))
    end = place + 1 + choices.below(64)
    return data[:end] + data[place:end] + data[end:]


_DAMAGES: list[Callable[[bytes, Choices], bytes]] = [
    _flipped,
    _overwritten,
    _inserted,
    _cut_short,
    _piece_lost,
    _piece_doubled,
]
