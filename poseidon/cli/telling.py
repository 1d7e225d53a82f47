"""Whom a tool tells what it does: people at a terminal see a bar, everybody else reads Caffe's log lines.

While a tool runs, SIGTERM and hang-up end it as Ctrl-C does: by an exception, so that it can take away what it has not
finished.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from poseidon.cli.bars import Bars
from poseidon.cli.command import Flags
from poseidon.cli.plain_log import PlainLog
from poseidon.cli.terminal import has_display
from poseidon.tools.teller import Teller

_ENDING = (signal.SIGTERM, signal.SIGHUP)


def tool_flags(flags: Flags) -> None:
    """What every tool takes. Those of glog ask for what is always done: to log to standard error."""
    flags.switch("plain", help="Caffe's log lines, also on a terminal")
    for name in ("logtostderr", "alsologtostderr"):
        flags.switch(name, help="the log goes to standard error, with this flag and without it")


@contextmanager
def telling(found: argparse.Namespace) -> Iterator[Teller]:
    """Around a tool's work."""
    with _ended_by_signals():
        if has_display(found):
            with Bars() as bars:
                yield _OnScreen(bars)
        else:
            with PlainLog().taking_warnings() as log:
                yield _InLog(log)


class _OnScreen:
    """Bars, and above them what went wrong."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    def say(self, place: str, text: str, severity: str = "I") -> None:
        if severity != "I":
            self._bars.show(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self._bars.report(what, done, total)


class _InLog:
    """Caffe's lines; the log says often enough how far things are."""

    def __init__(self, log: PlainLog) -> None:
        self._log = log

    def say(self, place: str, text: str, severity: str = "I") -> None:
        self._log.say(place, text, severity)

    def progress(self, what: str, done: int, total: int) -> None: ...


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
