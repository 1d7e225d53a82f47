"""What it costs to watch: whole solver steps with and without somebody looking, in turns.

    python -m bench.watching [--nets lenet] [--turns 15] [--steps 40] [--threads 1] [--workers P] [--json OUT]

    record    --record: metrics, at every 10th iteration
    trace     --trace: the events of every iteration, written to the disk
    told      --tensorboard and --metrics-port, at every 10th iteration
    display   the live display, on a pseudo-terminal that somebody reads, with the lines of two workers
    all       everything at once

Each is one solver in one process: a few dozen steps plain, as many watched, over and over, the two in changing order.
The ratio is the median over turns of watched / plain, by the clock, and beside it by the processor time of the whole
process, which a machine with other things to do disturbs less. With --workers, whole jobs of `poseidon train
--workers P` take turns instead, plain ones with `trace` and with `all`, and the ratio is that of their seconds per
iteration after the first third: that takes half a minute for each turn.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.solver import SUBJECTS, param_on
from poseidon.cli.progress import ProgressDisplay
from poseidon.cli.signals import signal_requests
from poseidon.observe.options import ObserveOptions
from poseidon.plan import Cluster, make_plan
from poseidon.record import read
from poseidon.run.layer_times import estimated_times
from poseidon.run.observation import Observation
from poseidon.run.profile import profile_net
from poseidon.run.seat import Seat
from poseidon.run.view import JobView
from poseidon.solver import Solver, events
from poseidon.spec import format_message
from poseidon.transport.vitals import Vitals

LIMITS = {"record": 1.01, "trace": 1.02, "told": 1.01, "display": 1.01, "all": 1.03}
DISPLAY = 10

Watching = Callable[[Solver, str], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Result:
    net: str
    watched: str
    plain_ms: float
    ratio: float
    lowest_ratio: float
    highest_ratio: float
    limit: float
    processor_ratio: float | None = None

    @property
    def holds(self) -> bool:
        return self.ratio <= self.limit


# -- one worker -------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def observed(solver: Solver, options: ObserveOptions) -> Iterator[None]:
    with Observation(solver, options, Seat()) as observation:
        observation.join()
        yield


@contextlib.contextmanager
def displayed(solver: Solver, folder: str) -> Iterator[None]:
    """The display on a terminal of 120 columns, whose other side is read."""
    with (
        open(_terminal(), "w") as terminal,
        mock.patch.dict(os.environ, {"COLUMNS": "120", "LINES": "40", "TERM": "xterm"}),
        mock.patch.object(sys, "stderr", terminal),
        signal_requests("none", "none") as requests,
        ProgressDisplay(solver.param, "", torch.device("cpu"), requests) as display,
    ):
        display(events.NetBuilt(None, solver.net))
        display.meet(_view(solver))
        solver.listeners.append(display)
        yield
        solver.listeners.remove(display)


def _view(solver: Solver) -> JobView:
    """Of a job of two workers on two nodes, which stand still."""
    profile = profile_net(solver.net, estimated_times(solver.net, 1e9))
    plan = make_plan(profile, Cluster((1, 1), bandwidth_bps=1e9))
    vitals = {rank: Vitals(figures={"wait_share": 0.25, "sent_bytes": 1e6}) for rank in range(2)}
    return JobView(plan, lambda: vitals, (0, 1), plan.cluster.bandwidth_bps / 8)


@contextlib.contextmanager
def watched_by_all(solver: Solver, folder: str) -> Iterator[None]:
    options = ObserveOptions(folder, all_iterations=True, tensorboard=f"{folder}/board", metrics_port=0)
    with displayed(solver, folder), observed(solver, options):
        yield


def _terminal() -> int:
    """A pseudo-terminal's end to write to; the other one is read until it is closed."""
    master, slave = os.openpty()
    tty.setraw(slave)
    threading.Thread(target=_read, args=(master,), daemon=True).start()
    return slave


def _read(master: int) -> None:
    with contextlib.suppress(OSError):  # the other side is closed
        while os.read(master, 1 << 16):
            pass
    os.close(master)


WATCHED: dict[str, Watching] = {
    "record": lambda solver, folder: observed(solver, ObserveOptions(folder)),
    "trace": lambda solver, folder: observed(solver, ObserveOptions(folder, all_iterations=True)),
    "told": lambda solver, folder: observed(solver, ObserveOptions(tensorboard=folder, metrics_port=0)),
    "display": displayed,
    "all": watched_by_all,
}


def measure(net: str, options: argparse.Namespace, folder: str) -> list[Result]:
    subject = SUBJECTS[net]
    subject.write(f"{folder}/data")
    param = param_on(net, f"{folder}/data", subject.batch)
    param.display, param.max_iter = DISPLAY, 1 << 30
    solver = Solver(param)
    solver.step(options.steps)
    results = []
    for name, watching in WATCHED.items():
        pairs = [_pair(solver, watching, f"{folder}/{name}-{turn}", turn, options) for turn in range(options.turns)]
        ratios = [watched.wall_s / plain.wall_s for plain, watched in pairs]
        processor = statistics.median(watched.processor_s / plain.processor_s for plain, watched in pairs)
        found = _result(net, name, [plain.wall_s for plain, _ in pairs], ratios)
        results.append(replace(found, processor_ratio=processor))
    return results


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of a turn: by the clock, and of all processors."""

    wall_s: float
    processor_s: float


def _pair(
    solver: Solver, watching: Watching, folder: str, turn: int, options: argparse.Namespace
) -> tuple[Taken, Taken]:
    """A step, plain and watched."""
    taken = {}
    for is_watched in (False, True) if turn % 2 else (True, False):
        with watching(solver, folder) if is_watched else contextlib.nullcontext():
            solver.step(2)
            begin_s, processor_s = time.perf_counter(), time.process_time()
            solver.step(options.steps)
            wall_s, processor_s = time.perf_counter() - begin_s, time.process_time() - processor_s
            taken[is_watched] = Taken(wall_s / options.steps, processor_s / options.steps)
    return taken[False], taken[True]


def _result(net: str, name: str, plain: list[float], ratios: list[float]) -> Result:
    middle = statistics.median(ratios)
    return Result(net, name, statistics.median(plain) * 1e3, middle, min(ratios), max(ratios), LIMITS[name])


# -- several workers --------------------------------------------------------------------------------------------------
def measure_jobs(net: str, options: argparse.Namespace, folder: str) -> list[Result]:
    subject = SUBJECTS[net]
    subject.write(f"{folder}/data")
    param = param_on(net, f"{folder}/data", subject.batch)
    param.display, param.max_iter, param.snapshot_after_train = DISPLAY, 3 * options.steps, False
    Path(f"{folder}/solver.prototxt").write_text(format_message(param))
    taken: dict[str, list[float]] = {"plain": [], "trace": [], "all": []}
    for turn in range(options.turns):
        jobs = {
            "plain": lambda: plain_seconds(folder, options, []),
            "trace": lambda turn=turn: plain_seconds(folder, options, [f"--trace={folder}/trace-{turn}"]),
            "all": lambda turn=turn: displayed_seconds(folder, options, f"{folder}/all-{turn}"),
        }
        for name in list(jobs)[:: 1 if turn % 2 else -1]:
            taken[name].append(jobs[name]())
    plain = taken.pop("plain")
    return [
        _result(
            f"{net} × {options.workers}",
            name,
            plain,
            [watched / alone for watched, alone in zip(found, plain, strict=True)],
        )
        for name, found in taken.items()
    ]


def _job(folder: str, options: argparse.Namespace, flags: list[str]) -> list[str]:
    command = [sys.executable, "-m", "poseidon", "train", f"--solver={folder}/solver.prototxt", *flags]
    return [*command, f"--workers={options.workers}", f"--threads={options.threads}", "--scheme=ring"]


def plain_seconds(folder: str, options: argparse.Namespace, flags: list[str]) -> float:
    """Median seconds per iteration of a job, of the later two thirds of its log lines."""
    command = _job(folder, options, ["--plain", *flags])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found = [float(text) for text in re.findall(rf"iter/s, ([\d.e-]+)s/{DISPLAY} iters", done.stderr)]
    return _later_median(found) / DISPLAY


def displayed_seconds(folder: str, options: argparse.Namespace, record: str) -> float:
    """The same of a job with everything at once; its display has no log lines, so its record is asked for them."""
    flags = [f"--trace={record}", f"--tensorboard={record}/board", "--metrics-port=0"]
    command = _job(folder, options, flags)
    environ = {**os.environ, "COLUMNS": "120", "LINES": "40", "TERM": "xterm"}
    with open(_terminal(), "w") as terminal:
        done = subprocess.run(command, stdout=terminal, stderr=terminal, env=environ, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {done.returncode}")
    shown = [metric.seconds for metric in read(record, range(0)).training]
    return _later_median([after - before for before, after in itertools.pairwise(shown)]) / DISPLAY


def _later_median(seconds: list[float]) -> float:
    return statistics.median(seconds[len(seconds) // 3 :])


def _short(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="lenet")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s), medians of {options.turns} turns")
    print(f"{'net':12}{'watched':10}{'plain':>10}{'ratio':>8}{'from - to':>20}{'limit':>8}{'processor':>11}")
    results: list[Result] = []
    for net in options.nets.split(","):
        with tempfile.TemporaryDirectory(prefix="bench-watching-") as folder:
            found = (measure if options.workers == 1 else measure_jobs)(net, options, folder)
        for result in found:
            spread = f"({result.lowest_ratio:.3f} - {result.highest_ratio:.3f})"
            print(
                f"{result.net:12}{result.watched:10}{result.plain_ms:>8.2f}ms{result.ratio:>8.3f}{spread:>20}"
                f"{result.limit:>8.2f}{_short(result.processor_ratio):>11}"
                f"{'' if result.holds else '   <-- over the limit'}",
                flush=True,
            )
        results += found
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
