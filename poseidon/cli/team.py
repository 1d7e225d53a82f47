"""A training run as one of several workers: what rank 0 shows, and what the others keep to themselves."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from poseidon.cli.devices import worker_device
from poseidon.cli.log import CommandLog
from poseidon.cli.observing import observe_options
from poseidon.cli.progress import ProgressDisplay
from poseidon.cli.signals import SignalRequests, signal_requests
from poseidon.cli.terminal import has_display
from poseidon.cli.training import Say, exit_code, log_lines, net_options, resume_asked, say_nothing, solve
from poseidon.cli.workers import (
    HANG_S,
    ONE_SIDED,
    REPORT_S,
    bandwidth_bps,
    is_echo,
    latency_s,
    limit_bps,
    plan_request,
    threads_asked,
)
from poseidon.errors import PoseidonError
from poseidon.run.distribute import DistributeOptions
from poseidon.run.exits import CRASHED, code_of
from poseidon.run.launcher import accept_signals
from poseidon.run.options import CONSISTENCIES, ROW_ORDERS
from poseidon.run.planning import Links
from poseidon.run.rendezvous import Place, secret_of
from poseidon.run.worker import Face, WorkerOptions, train_worker
from poseidon.solver import Solver
from poseidon.spec import caffe_pb2


def train_in_team(param: caffe_pb2.SolverParameter, found: argparse.Namespace, place: Place) -> int:
    """Trains as the flags say, together with the other workers; returns an exit code."""
    device = worker_device(param, found.gpu, place)
    options = _options(found, device)
    codes: list[int] = []
    with signal_requests(found.sigint_effect, found.sighup_effect) as requests:
        accept_signals()
        try:
            with _face(param, found, place, device, requests, codes) as face:
                train_worker(param, place, options, face)
        except PoseidonError as problem:
            if found.debug and not is_echo(problem, place):
                raise
            _farewell(found.program, place, problem)
            return code_of(problem)
        except Exception:  # nobody foresaw it; the launcher is to know that from a mistake
            traceback.print_exc()
            return CRASHED
    return codes[0] if codes else 0


def _options(found: argparse.Namespace, device: torch.device) -> WorkerOptions:
    return WorkerOptions(
        net=net_options(found, device),
        request=plan_request(found),
        team=DistributeOptions(
            averages=found.reduce != "sum",
            sync_bn=found.sync_bn,
            verify_replicas=found.verify_replicas or 0,
            net_outputs=found.net_outputs,
            data_in_memory=found.data_in_memory,
            staleness=found.staleness,
            consistency=found.consistency or CONSISTENCIES[0],
            servers=found.servers or 0,
            row_order=found.row_order or ROW_ORDERS[0],
            half_rows=found.half_rows,
            limit_bps=limit_bps(found),
            balance=found.balance,
            stats=found.stats,
        ),
        links=Links(bandwidth_bps(found), latency_s(found), limit_bps(found)),
        threads=threads_asked(found, os.environ),
        interface=found.interface,
        one_sided=found.one_sided or ONE_SIDED[0],
        resume=resume_asked(found, os.environ),
        secret=secret_of(os.environ),
        keep=found.keep,
        report_s=found.report_after or REPORT_S,
        hang_s=found.hang_after or HANG_S,
        observe=observe_options(found, os.environ),
    )


# -- faces ------------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def _face(
    param: caffe_pb2.SolverParameter,
    found: argparse.Namespace,
    place: Place,
    device: torch.device,
    requests: SignalRequests,
    codes: list[int],
) -> Iterator[Face]:
    farewell = partial(_farewell, found.program, place)
    train = partial(_solve, codes, requests)
    if place.rank != 0:
        # Rank 0 warns of what all find alike.
        logging.getLogger("poseidon").setLevel(logging.ERROR)
        yield Face((), _say_nothing, train, farewell)
    elif has_display(found):
        flags = f"--solver={found.solver}{f' --workers={place.size}' if place.launcher_pid else ''}"
        with ProgressDisplay(param, flags, device, requests) as display:
            bye = partial(farewell, stop_display=display.stop)
            yield Face((display,), display.show, train, bye, display.meet)
    else:
        with CommandLog().taking_warnings() as log:
            log.say("caffe.cpp:197", "Use CPU." if device.type == "cpu" else f"Using GPUs {found.gpu or 'all'}")
            yield Face((log,), partial(log_lines, log), partial(train, say=log.say), farewell)


def _solve(codes: list[int], requests: SignalRequests, solver: Solver, snapshot: str, say: Say = say_nothing) -> None:
    solve(solver, snapshot, requests=requests, say=say)
    codes.append(exit_code(solver))


def _say_nothing(lines: Sequence[str]) -> None:
    """Rank 0 says it."""


def _farewell(
    program: str, place: Place, problem: PoseidonError, *, stop_display: Callable[[], None] = lambda: None
) -> None:
    stop_display()
    if not is_echo(problem, place):
        print(f"{program}: error: {problem}", file=sys.stderr, flush=True)
