"""One line of a log, and numbers in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogLine:
    """`place` is file and line in Caffe's sources; `severity` I, W, E or F. The text may run over several lines."""

    place: str
    text: str
    severity: str = "I"


def number(value: float) -> str:
    """As a C++ stream prints it: six significant digits, no trailing zeros."""
    return f"{value:g}"
