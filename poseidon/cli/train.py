"""train: `caffe train --solver=S [--snapshot=F | --weights=F,…]`; with `--workers P`, or under torchrun, srun or
mpirun, on P workers; with `--hosts` or `--hostfile` on those of several hosts."""

from __future__ import annotations

import argparse
import os

from poseidon.cli.cluster import cluster_flags, hosts_asked, start_cluster
from poseidon.cli.command import Command, Flags, files, listed, net_flags, one_of, positive_number, require
from poseidon.cli.observing import observe_flags, observe_options
from poseidon.cli.terminal import loading
from poseidon.cli.workers import check_alone, check_values, num_to_start, start_workers, worker_flags
from poseidon.errors import UsageError
from poseidon.run.launcher import follow
from poseidon.run.rendezvous import Place, find_place, launcher_of
from poseidon.spec import caffe_pb2, read_solver

EFFECTS = ("stop", "snapshot", "none")


def declare(flags: Flags) -> None:
    flags.flag("solver", metavar="FILE", help="the solver's prototxt")
    flags.flag(
        "snapshot", default="", metavar="FILE", help="go on from this .solverstate; auto: from the newest good one"
    )
    flags.flag("keep", type=positive_number, default=0, metavar="N", help="of the snapshots keep the last N (all)")
    flags.flag("weights", default="", metavar="FILES", help="start from these .caffemodel files (comma list)")
    flags.flag("freeze", default="", metavar="LAYERS", help='layers that shall not learn, as in "conv*,fc6"')
    flags.flag("renew", default="", metavar="LAYERS", help="layers that start afresh although --weights has them")
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
    worker_flags(flags)
    cluster_flags(flags)
    observe_flags(flags)


def run(found: argparse.Namespace) -> int:
    num_asked = None if found.workers is None else found.workers + (found.servers or 0)
    place = find_place(os.environ, num_asked)
    launcher_pid = launcher_of(os.environ)
    follow(launcher_pid)
    hosts = None if place is not None or launcher_pid is not None else hosts_asked(found)
    if place is not None:
        found.plain = found.plain or place.rank != 0
    check_values(found)
    observe_options(found, os.environ)  # raises for what makes no sense: here, once, not on every worker
    param = solver_param(found)
    if place is not None:
        return _train_in_team(param, found, place)
    if hosts is not None:
        return start_cluster(param, found, hosts)
    if launcher_pid is None:  # else it is the only worker that is left of several
        num_workers = num_to_start(found)
        if num_workers > 1:
            return start_workers(found, num_workers)
        check_alone(found)
    with loading(found):
        from poseidon.cli.training import train
    return train(param, found)


def _train_in_team(param: caffe_pb2.SolverParameter, found: argparse.Namespace, place: Place) -> int:
    with loading(found):
        from poseidon.cli.team import train_in_team
    return train_in_team(param, found, place)


def solver_param(found: argparse.Namespace) -> caffe_pb2.SolverParameter:
    """The solver's settings, with what the flags add."""
    path = require(found.solver, "solver", "the solver's prototxt, as in --solver=solver.prototxt")
    if found.snapshot and found.weights:
        raise UsageError("give --snapshot to go on training or --weights to fine-tune, not both")
    if found.snapshot != "auto" and len(files(found.snapshot, "snapshot")) > 1:
        raise UsageError(f"--snapshot takes one .solverstate, got {found.snapshot!r}")
    param = read_solver(path)
    param.train_state.level = found.level
    param.train_state.stage.extend(listed(found.stage))
    param.weights.extend(files(found.weights, "weights"))
    return param


COMMAND = Command(declare, run)
