"""train: `caffe train --solver=S [--snapshot=F | --weights=F,…]`."""

from __future__ import annotations

import argparse
import sys

from poseidon.cli.command import Command, Flags, listed, net_flags, require
from poseidon.cli.devices import solver_device
from poseidon.cli.log import CommandLog
from poseidon.cli.progress import ProgressDisplay
from poseidon.cli.signals import EFFECTS, signal_requests
from poseidon.errors import UsageError
from poseidon.solver import NetOptions, Solver
from poseidon.spec import caffe_pb2, read_solver


def declare(flags: Flags) -> None:
    flags.flag("solver", metavar="FILE", help="the solver's prototxt")
    flags.flag("snapshot", default="", metavar="FILE", help="go on from this .solverstate")
    flags.flag("weights", default="", metavar="FILES", help="start from these .caffemodel files (comma list)")
    flags.flag("sigint-effect", choices=EFFECTS, default="stop", help="what Ctrl-C does (default: stop)")
    flags.flag("sighup-effect", choices=EFFECTS, default="snapshot", help="what hang-up does (default: snapshot)")
    flags.flag("plain", action="store_true", help="Caffe's log lines, also on a terminal")
    net_flags(flags)


def run(found: argparse.Namespace) -> int:
    path = require(found.solver, "solver", "the solver's prototxt, as in --solver=solver.prototxt")
    if found.snapshot and found.weights:
        raise UsageError("give --snapshot to go on training or --weights to fine-tune, not both")
    param = read_solver(path)
    _apply_flags(param, found)
    device = solver_device(param, found.gpu)
    log = CommandLog()
    if found.program == "poseidon" and not found.plain and sys.stderr.isatty():
        with ProgressDisplay(param, device) as display:
            _train(param, found, NetOptions(device=device), display)
        return 0
    log.say("caffe.cpp:197", "Use CPU." if device.type == "cpu" else f"Using GPUs {device.index}")
    _train(param, found, NetOptions(device=device), log)
    return 0


def _apply_flags(param: caffe_pb2.SolverParameter, found: argparse.Namespace) -> None:
    param.train_state.level = found.level
    param.train_state.stage.extend(listed(found.stage))
    param.weights.extend(listed(found.weights))


def _train(
    param: caffe_pb2.SolverParameter,
    found: argparse.Namespace,
    options: NetOptions,
    teller: CommandLog | ProgressDisplay,
) -> None:
    with signal_requests(found.sigint_effect, found.sighup_effect) as requests:
        solver = Solver(param, options=options, listeners=[teller])
        solver.action = requests
        if found.snapshot:
            teller.say("caffe.cpp:235", f"Resuming from {found.snapshot}")
            solver.restore(found.snapshot)
        teller.say("caffe.cpp:239", "Starting Optimization")
        solver.solve()
        teller.say("caffe.cpp:250", "Optimization Done.")


COMMAND = Command(declare, run)
