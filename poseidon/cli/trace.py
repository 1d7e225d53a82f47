"""trace: `poseidon trace RUN -o t.json` makes one timeline of what all ranks have recorded (`train --trace RUN`)."""

from __future__ import annotations

import argparse
import sys

from poseidon.cli.command import Command, Flags, Operand
from poseidon.cli.terminal import busy
from poseidon.errors import UsageError
from poseidon.record import read
from poseidon.record.timeline import write_timeline


def declare(flags: Flags) -> None:
    flags.operands(Operand("RUN", "the folder of a run that was recorded: `poseidon train --trace RUN …`"))
    flags.flag("o", default="", metavar="FILE", help="the timeline (RUN/timeline.json); packed if it ends in .gz")
    flags.flag("iterations", default="", metavar="A:B", help="from iteration A up to, but without, B (all)")


def run(found: argparse.Namespace) -> int:
    first, last = _range(found.iterations)
    path = found.o or f"{found.run}/timeline.json"
    with busy(f"reading {found.run}"):
        traces = read(found.run, range(first, sys.maxsize if last is None else last)).traces
    with busy(f"writing {path}"):
        num_events = write_timeline(path, traces)
    worst_s = max((trace.uncertainty_s for trace in traces), default=0.0)
    print(f"{path}: {num_events} events of {len(traces)} ranks; clocks agree to {worst_s * 1e6:.0f} µs")
    if sys.stdout.isatty():
        print("open it at https://ui.perfetto.dev (nothing is uploaded) or in chrome://tracing")
    return 0


def _range(text: str) -> tuple[int, int | None]:
    if not text:
        return 0, None
    first, colon, last = text.partition(":")
    if not colon or not all(part.isdecimal() or not part for part in (first, last)):
        raise UsageError(f"--iterations is a range like 100:110, got {text!r}")
    return int(first or 0), int(last) if last else None


COMMAND = Command(declare, run)
