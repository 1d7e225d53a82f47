"""Whole workers (`train_worker`), each in a process of its own, started the way a test wants each of them started."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

import poseidon
from poseidon.errors import PoseidonError
from poseidon.plan import PlanRequest
from poseidon.run.distribute import DistributeOptions
from poseidon.run.launcher import free_port
from poseidon.run.planning import Links
from poseidon.run.rendezvous import Place
from poseidon.run.replicas import checksum
from poseidon.run.resume import Resume
from poseidon.run.worker import Face, WorkerOptions, train_worker
from poseidon.solver import NetOptions, Solver
from poseidon.spec import caffe_pb2
from tests.run.jobs import solver_param

MOST_S = 60.0
# Forked from one that has imported torch; nothing of the test's own process comes along.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


@dataclass(frozen=True, slots=True)
class Start:
    """What one worker is started with."""

    net: str
    solver: str = ""
    version: str = poseidon.__version__
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    request: PlanRequest = field(default_factory=PlanRequest)
    team: DistributeOptions = field(default_factory=DistributeOptions)
    links: Links = field(default_factory=lambda: Links(bandwidth_bps=1e9))
    resume: Resume = field(default_factory=Resume)
    threads: int = 1


@dataclass(frozen=True, slots=True)
class End:
    """How it ended: the kind and the text of its error, if any; whether it trained, and what `watch` saw of it."""

    error: str
    text: str
    trained: bool
    seen: list[Any]
    parameters: int


def run_all(starts: list[Start], watch: Callable[[Solver, list[Any]], None] | None = None) -> list[End]:
    """Every worker's end, by rank. `watch(solver, seen)` is called before it trains."""
    port = free_port()
    processes, ends = [], []
    for rank, start in enumerate(starts):
        receives, sends = _PROCESSES.Pipe(duplex=False)
        place = Place(rank, len(starts), rank, len(starts), "127.0.0.1", port)
        process = _PROCESSES.Process(target=_work, args=(place, start, watch, sends), daemon=True)
        process.start()
        sends.close()
        processes.append((process, receives))
    try:
        for rank, (_, receives) in enumerate(processes):
            assert receives.poll(MOST_S), f"rank {rank} says nothing"
            ends.append(receives.recv())
    finally:
        for process, _ in processes:
            process.kill()
            process.join()
    return ends


def _work(place: Place, start: Start, watch: Callable[[Solver, list[Any]], None] | None, answer: Connection) -> None:
    poseidon.__version__ = start.version
    seen: list[Any] = []
    solvers: list[Solver] = []

    def train(solver: Solver, snapshot: str) -> None:
        solvers.append(solver)
        if watch is not None:
            watch(solver, seen)
        solver.solve()
        solver.updates.drain()

    options = WorkerOptions(
        NetOptions(start.device, start.dtype),
        start.request,
        start.team,
        start.links,
        threads=start.threads,
        resume=start.resume,
    )
    face = Face((), lambda lines: None, train, lambda problem: None)
    error = text = ""
    try:
        train_worker(_param(start), place, options, face)
    except PoseidonError as problem:
        error, text = type(problem).__name__, str(problem)
    parameters = checksum([entry.value for solver in solvers for entry in solver.net.learnable])
    answer.send(End(error, text, bool(solvers), seen, parameters))


def _param(start: Start) -> caffe_pb2.SolverParameter:
    return solver_param(start.net, start.solver)
