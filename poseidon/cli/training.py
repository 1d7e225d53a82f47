"""A training run from the command line: which device, who is told, what signals do."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

from poseidon.cli.command import listed
from poseidon.cli.devices import solver_device
from poseidon.cli.log import CommandLog
from poseidon.cli.observing import observe_options
from poseidon.cli.progress import ProgressDisplay
from poseidon.cli.signals import SignalRequests, signal_requests
from poseidon.cli.terminal import has_display
from poseidon.run.exits import YIELDED
from poseidon.run.launcher import accept_signals
from poseidon.run.net_outputs import NetOutputs
from poseidon.run.observation import Observation
from poseidon.run.rendezvous import JOB, num_restarts
from poseidon.run.resume import Resume, find_snapshot
from poseidon.run.seat import Seat
from poseidon.solver import NetOptions, Solver
from poseidon.solver.background import BackgroundWriter
from poseidon.solver.events import Listener
from poseidon.solver.snapshot import check_writable
from poseidon.spec import caffe_pb2

DTYPES = {"float32": torch.float32, "float64": torch.float64}

Say = Callable[[str, str], None]


def say_nothing(place: str, text: str) -> None:
    """Where there is a display, it hears the solver's events."""


def train(param: caffe_pb2.SolverParameter, found: argparse.Namespace) -> int:
    """Trains as the flags say, until max_iter or until somebody asks to stop; returns an exit code."""
    device = solver_device(param, found.gpu)
    if found.threads is not None:
        torch.set_num_threads(found.threads)
    if param.snapshot_after_train:
        check_writable(param.snapshot_prefix)  # better now than when all the work is done
    snapshot = find_snapshot(param.snapshot_prefix, resume_asked(found, os.environ))
    with signal_requests(found.sigint_effect, found.sighup_effect) as requests:
        accept_signals()
        if has_display(found):
            with ProgressDisplay(param, f"--solver={found.solver}", device, requests) as display:
                solver = _built(param, found, device, display)
                with _observed(solver, found, display.show):
                    solve(solver, snapshot, requests=requests)
            return exit_code(solver)
        with CommandLog().taking_warnings() as log:
            log.say("caffe.cpp:197", "Use CPU." if device.type == "cpu" else f"Using GPUs {device.index}")
            solver = _built(param, found, device, log)
            with _observed(solver, found, partial(log_lines, log)):
                solve(solver, snapshot, requests=requests, say=log.say)
            return exit_code(solver)


def exit_code(solver: Solver) -> int:
    """Tells a run that made room from one that is done."""
    return YIELDED if solver.has_yielded else 0


def _built(
    param: caffe_pb2.SolverParameter, found: argparse.Namespace, device: torch.device, listener: Listener
) -> Solver:
    listeners = [listener]
    if found.net_outputs:
        listeners.append(NetOutputs(found.net_outputs, len(param.test_iter)))
    solver = Solver(param, options=net_options(found, device), listeners=listeners)
    solver.writer, solver.keep = BackgroundWriter(), found.keep
    solver.job = resume_asked(found, os.environ).job
    return solver


@contextlib.contextmanager
def _observed(solver: Solver, found: argparse.Namespace, show: Callable[[Sequence[str]], None]) -> Iterator[None]:
    with Observation(solver, observe_options(found, os.environ), Seat()) as observation:
        show(observation.lines)
        observation.join()
        yield


def log_lines(log: CommandLog, lines: Sequence[str]) -> None:
    """Lines of ours in Caffe's log."""
    for line in lines:
        log.say("worker.py:1", line)


def net_options(found: argparse.Namespace, device: torch.device) -> NetOptions:
    """How the flags want the nets to be built."""
    freeze, renew = tuple(listed(found.freeze)), tuple(listed(found.renew))
    return NetOptions(device=device, dtype=DTYPES[found.dtype], freeze=freeze, renew=renew)


def resume_asked(found: argparse.Namespace, environ: Mapping[str, str]) -> Resume:
    """Which snapshot the flags and the launcher ask for."""
    return Resume(found.snapshot, environ.get(JOB, ""), num_restarts(environ) > 0)


def solve(solver: Solver, snapshot: str, *, requests: SignalRequests, say: Say = say_nothing) -> None:
    """Trains with a solver that is ready, from a snapshot if one is named."""
    solver.action = requests
    if snapshot:
        say("caffe.cpp:235", f"Resuming from {snapshot}")
        solver.restore(snapshot)
    say("caffe.cpp:239", "Starting Optimization")
    solver.solve()
    say("caffe.cpp:250", "Optimization Done.")
