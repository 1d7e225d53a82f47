"""What it costs to watch: whole solver steps with and without somebody looking, in turns.

    python -m bench.watching [--nets lenet] [--turns N] [--steps N] [--threads 1] [--workers P] [--json OUT]

    record    --record: metrics, at every 10th iteration
    trace     --trace: the events of every iteration, written to the disk
    told      --tensorboard and --metrics-port, at every 10th iteration
    display   the live display, on a pseudo-terminal that somebody reads, with the lines of two workers
    shown     record, told and display at once: everything that one may look at while it runs
    all       everything at once, with the trace

What watching adds to a step does not depend on the batch, so it is measured where it shows: one solver in one process
with a batch of one image, a few steps plain, as many watched, over and over, the two in changing order: a processor
that others use too changes its speed by a tenth within seconds, so what is compared should lie close together. The
median of the differences is held against a step of the usual batch; what is added is what the watched process takes of
a processor while nothing happens (a display is drawn by the clock): that part counts twice rather than not at all. A
step of 27 ms varies by more than the 1 % that is asked for here; a difference of microseconds shows.

With --workers it is whole jobs of `poseidon train --workers P` that take turns, plain ones with `trace` and with `all`:
seconds per iteration after the first third, again with a batch of one, against those of a job with the usual batch.
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
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

LIMITS = {"record": 1.01, "trace": 1.02, "told": 1.01, "display": 1.01, "shown": 1.01, "all": 1.03}
DISPLAY = 10
IDLE_S = 2.0
PLAIN_TURNS = 30

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
    added_us: float = 0.0  # to a step
    idle_share: float | None = None  # of a processor

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
def watched_by_all(solver: Solver, folder: str, has_trace: bool) -> Iterator[None]:
    options = ObserveOptions(folder, all_iterations=has_trace, tensorboard=f"{folder}/board", metrics_port=0)
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
    "shown": partial(watched_by_all, has_trace=False),
    "all": partial(watched_by_all, has_trace=True),
}


def measure(net: str, options: argparse.Namespace, folder: str, names: Iterable[str] = WATCHED) -> list[Result]:
    subject = SUBJECTS[net]
    subject.write(f"{folder}/data")
    usual, small = (_solver(net, folder, batch) for batch in (subject.batch, 1))
    plain_s = [_seconds(usual, 3 * DISPLAY) for _ in range(min(options.turns, PLAIN_TURNS))]
    step_s = statistics.median(plain_s)
    results = []
    for name in names:
        watching = WATCHED[name]
        added_s = [_added_s(small, watching, f"{folder}/{name}-{turn}", turn, options) for turn in range(options.turns)]
        with watching(small, f"{folder}/{name}-idle"):
            idle_share = _idle_share()
        ratios = [1 + added / step_s + idle_share for added in added_s]
        found = _result(net, name, plain_s, ratios)
        results.append(replace(found, added_us=statistics.median(added_s) * 1e6, idle_share=idle_share))
    return results


def _solver(net: str, folder: str, batch: int) -> Solver:
    param = param_on(net, f"{folder}/data", batch)
    param.display, param.max_iter = DISPLAY, 1 << 30
    solver = Solver(param)
    solver.step(DISPLAY)
    return solver


def _seconds(solver: Solver, num_steps: int) -> float:
    """Of a step, the median over every DISPLAY of them: in each, something is shown once."""
    taken = []
    for _ in range(max(num_steps // DISPLAY, 1)):
        begin_s = time.perf_counter()
        solver.step(DISPLAY)
        taken.append((time.perf_counter() - begin_s) / DISPLAY)
    return statistics.median(taken)


def _added_s(solver: Solver, watching: Watching, folder: str, turn: int, options: argparse.Namespace) -> float:
    """What a step takes longer when it is watched."""
    taken = {}
    for is_watched in (False, True) if turn % 2 else (True, False):
        with watching(solver, folder) if is_watched else contextlib.nullcontext():
            solver.step(2)
            taken[is_watched] = _seconds(solver, options.steps)
    return taken[True] - taken[False]


def _idle_share() -> float:
    """What this process takes of a processor while its main thread waits."""
    time.sleep(0.1)
    begin_s = time.process_time()
    time.sleep(IDLE_S)
    return (time.process_time() - begin_s) / IDLE_S


def _result(net: str, name: str, plain: list[float], ratios: list[float]) -> Result:
    middle = statistics.median(ratios)
    return Result(net, name, statistics.median(plain) * 1e3, middle, min(ratios), max(ratios), LIMITS[name])


# -- several workers --------------------------------------------------------------------------------------------------
def measure_jobs(net: str, options: argparse.Namespace, folder: str) -> list[Result]:
    subject = SUBJECTS[net]
    subject.write(f"{folder}/data")
    for batch in (1, subject.batch):
        param = param_on(net, f"{folder}/data", batch)
        param.display, param.max_iter, param.snapshot_after_train = DISPLAY, 3 * options.steps, False
        Path(f"{folder}/solver-{batch}.prototxt").write_text(format_message(param))
    usual_s = [plain_seconds(f"{folder}/solver-{subject.batch}.prototxt", options, []) for _ in range(options.turns)]
    taken: dict[str, list[float]] = {"plain": [], "trace": [], "all": []}
    for turn in range(options.turns):
        jobs = {
            "plain": lambda: plain_seconds(f"{folder}/solver-1.prototxt", options, []),
            "trace": lambda turn=turn: plain_seconds(
                f"{folder}/solver-1.prototxt", options, [f"--trace={folder}/trace-{turn}"]
            ),
            "all": lambda turn=turn: displayed_seconds(f"{folder}/solver-1.prototxt", options, f"{folder}/all-{turn}"),
        }
        for name in list(jobs)[:: 1 if turn % 2 else -1]:
            taken[name].append(jobs[name]())
    plain, step_s = taken.pop("plain"), statistics.median(usual_s)
    results = []
    for name, found in taken.items():
        added_s = [watched - alone for watched, alone in zip(found, plain, strict=True)]
        result = _result(f"{net} × {options.workers}", name, usual_s, [1 + added / step_s for added in added_s])
        results.append(replace(result, added_us=statistics.median(added_s) * 1e6))
    return results


def _job(solver: str, options: argparse.Namespace, flags: list[str]) -> list[str]:
    command = [sys.executable, "-m", "poseidon", "train", f"--solver={solver}", *flags]
    return [*command, f"--workers={options.workers}", f"--threads={options.threads}", "--scheme=ring"]


def plain_seconds(solver: str, options: argparse.Namespace, flags: list[str]) -> float:
    """Median seconds per iteration of a job, of the later two thirds of its log lines."""
    command = _job(solver, options, ["--plain", *flags])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found = [float(text) for text in re.findall(rf"iter/s, ([\d.e-]+)s/{DISPLAY} iters", done.stderr)]
    return _later_median(found) / DISPLAY


def displayed_seconds(solver: str, options: argparse.Namespace, record: str) -> float:
    """The same of a job with everything at once; its display has no log lines, so its record is asked for them."""
    flags = [f"--trace={record}", f"--tensorboard={record}/board", "--metrics-port=0"]
    command = _job(solver, options, flags)
    environ = {**os.environ, "COLUMNS": "120", "LINES": "40", "TERM": "xterm"}
    with open(_terminal(), "w") as terminal:
        done = subprocess.run(command, stdout=terminal, stderr=terminal, env=environ, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {done.returncode}")
    shown = [metric.seconds for metric in read(record, range(0)).training]
    return _later_median([after - before for before, after in itertools.pairwise(shown)]) / DISPLAY


def _later_median(seconds: list[float]) -> float:
    return statistics.median(seconds[len(seconds) // 3 :])


def _parts(result: Result) -> str:
    idle = "" if result.idle_share is None else f", {result.idle_share:.2%} of a processor by the clock"
    return f"   {result.added_us:.0f} µs per step{idle}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="lenet")
    parser.add_argument("--turns", type=int, help="150; of jobs 30")
    parser.add_argument("--steps", type=int, help="10; of jobs 100")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    turns, steps = (150, 10) if options.workers == 1 else (30, 100)
    options.turns, options.steps = options.turns or turns, options.steps or steps
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s), medians of {options.turns} turns")
    print(f"{'net':12}{'watched':10}{'plain':>10}{'ratio':>8}{'from - to':>20}{'limit':>8}")
    results: list[Result] = []
    for net in options.nets.split(","):
        with tempfile.TemporaryDirectory(prefix="bench-watching-") as folder:
            found = (measure if options.workers == 1 else measure_jobs)(net, options, folder)
        for result in found:
            spread = f"({result.lowest_ratio:.3f} - {result.highest_ratio:.3f})"
            print(
                f"{result.net:12}{result.watched:10}{result.plain_ms:>8.2f}ms{result.ratio:>8.3f}{spread:>20}"
                f"{result.limit:>8.2f}{_parts(result)}{'' if result.holds else '   <-- over the limit'}",
                flush=True,
            )
        results += found
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
