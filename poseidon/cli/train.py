"""train: `caffe train --solver=S [--snapshot=F | --weights=F,…]`."""

from __future__ import annotations

import argparse

from poseidon.cli.command import Command, Flags, files, listed, net_flags, one_of, require
from poseidon.cli.terminal import loading
from poseidon.errors import UsageError
from poseidon.spec import read_solver

EFFECTS = ("stop", "snapshot", "none")


def declare(flags: Flags) -> None:
    flags.flag("solver", metavar="FILE", help="the solver's prototxt")
    flags.flag("snapshot", default="", metavar="FILE", help="go on from this .solverstate")
    flags.flag("weights", default="", metavar="FILES", help="start from these .caffemodel files (comma list)")
    effects = "|".join(EFFECTS)
    flags.flag(
        "sigint-effect", type=one_of(EFFECTS), default="stop", metavar="WHAT", help=f"on Ctrl-C: {effects} (stop)"
    )
    flags.flag(
        "sighup-effect",
        type=one_of(EFFECTS),
        default="snapshot",
        metavar="WHAT",
        help=f"on hang-up: {effects} (snapshot)",
    )
    net_flags(flags)


def run(found: argparse.Namespace) -> int:
    path = require(found.solver, "solver", "the solver's prototxt, as in --solver=solver.prototxt")
    if found.snapshot and found.weights:
        raise UsageError("give --snapshot to go on training or --weights to fine-tune, not both")
    if len(files(found.snapshot, "snapshot")) > 1:
        raise UsageError(f"--snapshot takes one .solverstate, got {found.snapshot!r}")
    param = read_solver(path)
    param.train_state.level = found.level
    param.train_state.stage.extend(listed(found.stage))
    param.weights.extend(files(found.weights, "weights"))
    with loading(found):
        from poseidon.cli.training import train
    train(param, found)
    return 0


COMMAND = Command(declare, run)
