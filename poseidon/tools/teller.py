"""Teller: whom a tool tells what it does: lines of Caffe's log, and how far it has come.

`say` gets the place in Caffe's sources that writes this line, the text, and glog's severity (I, W, E). `progress` gets
what is being done, how much of it is done and how much there is in all; it may be called for every record.
"""

from __future__ import annotations

from typing import Protocol


class Teller(Protocol):
    def say(self, place: str, text: str, severity: str = "I") -> None: ...

    def progress(self, what: str, done: int, total: int) -> None: ...


class Silence:
    """For callers that do not want to know."""

    def say(self, place: str, text: str, severity: str = "I") -> None: ...

    def progress(self, what: str, done: int, total: int) -> None: ...
