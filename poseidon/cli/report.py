"""report: `poseidon report RUN [-o page.html]` makes one HTML page of what `train --record RUN` has left."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from poseidon.cli.command import Command, Flags, Operand
from poseidon.cli.terminal import busy
from poseidon.errors import UsageError


def declare(flags: Flags) -> None:
    flags.operands(Operand("RUN", "the folder of a run that was recorded: `poseidon train --record RUN …`"))
    flags.flag("o", default="", metavar="FILE", help="the page (RUN/report.html)")
    flags.flag("iterations", default="", metavar="A:B", help="the timeline shows iterations A up to, but without, B")
    flags.flag(
        "baseline", default="", metavar="RUN", help="another recorded run, whose speed this one's is measured by"
    )


def run(found: argparse.Namespace) -> int:
    from poseidon.record import read
    from poseidon.report import ReportOptions, report
    from poseidon.report.timeline import Shown
    from poseidon.spec.files import write_atomically

    asked = _range(found.iterations)
    with busy(f"reading {found.run}"):
        recorded = read(found.run, _wanted(found.run, found.iterations, asked))
    shown = Shown(*asked)
    baseline = read(found.baseline, range(0)) if found.baseline else None
    path = found.o or os.path.join(found.run, "report.html")
    with busy(f"writing {path}"):
        write_atomically(report(recorded, ReportOptions(shown, baseline)).encode(), path)
    print(f"{path}: open it in a browser ({Path(path).resolve().as_uri()})")
    return 0


def _wanted(folder: str, text: str, asked: tuple[int, int | None] | tuple[()]) -> range:
    """The iterations whose events are read: those asked for, or the last ones, as many as say something about a run."""
    from poseidon.record.reading import traced
    from poseidon.report.overlap import MOST_EVENTS, MOST_ITERATIONS

    found = traced(folder)
    if not asked:
        return found.latest(MOST_ITERATIONS, MOST_EVENTS)
    first, stop = asked
    wanted = range(first, sys.maxsize if stop is None else stop)
    if not any(iteration in wanted for iteration in found.iterations):
        there = f"{found.iterations[0]} to {found.iterations[-1]}" if found.iterations else "none"
        raise UsageError(f"--iterations={text}: {folder} has no events of these on all ranks, only of {there}")
    return wanted


def _range(text: str) -> tuple[int, int | None] | tuple[()]:
    """`A:B` as two numbers; nothing: chosen by the report."""
    if not text:
        return ()
    first, colon, last = text.partition(":")
    if not colon or not all((part.isascii() and part.isdecimal()) or not part for part in (first, last)):
        raise UsageError(f"--iterations is a range like 100:105, got {text!r}")
    return int(first or 0), int(last) if last else None


COMMAND = Command(declare, run)
