"""A training run from the command line: which device, who is told, what signals do."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from poseidon.cli.devices import solver_device
from poseidon.cli.log import CommandLog
from poseidon.cli.progress import ProgressDisplay
from poseidon.cli.signals import SignalRequests, signal_requests
from poseidon.cli.terminal import has_display
from poseidon.solver import NetOptions, Solver
from poseidon.solver.events import Listener
from poseidon.solver.snapshot import check_writable
from poseidon.spec import caffe_pb2

Say = Callable[[str, str], None]


def train(param: caffe_pb2.SolverParameter, found: argparse.Namespace) -> None:
    """Trains as the flags say, until max_iter or until somebody asks to stop."""
    device = solver_device(param, found.gpu)
    if param.snapshot_after_train:
        check_writable(param.snapshot_prefix)  # better now than when all the work is done
    with signal_requests(found.sigint_effect, found.sighup_effect) as requests:
        if has_display(found):
            with ProgressDisplay(param, found.solver, device, requests) as display:
                _solve(param, found.snapshot, device, requests, display)
            return
        with CommandLog().taking_warnings() as log:
            log.say("caffe.cpp:197", "Use CPU." if device.type == "cpu" else f"Using GPUs {device.index}")
            _solve(param, found.snapshot, device, requests, log, log.say)


def _solve(
    param: caffe_pb2.SolverParameter,
    snapshot: str,
    device: torch.device,
    requests: SignalRequests,
    listener: Listener,
    say: Say = lambda place, text: None,
) -> None:
    solver = Solver(param, options=NetOptions(device=device), listeners=[listener])
    solver.action = requests
    if snapshot:
        say("caffe.cpp:235", f"Resuming from {snapshot}")
        solver.restore(snapshot)
    say("caffe.cpp:239", "Starting Optimization")
    solver.solve()
    say("caffe.cpp:250", "Optimization Done.")
