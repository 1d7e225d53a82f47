"""Report: how something that takes a while tells what it does, how much is done, and how much there is to do."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """For callers that do not want to know."""
