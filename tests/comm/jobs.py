"""What worker processes do in tests of exchanges over real sockets."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

from poseidon.comm import Exchange
from poseidon.errors import PeerLost
from poseidon.plan import CommPlan
from tests.comm.nets import ALL_CASES, DEEP, Case
from tests.comm.training import (
    STEPS,
    assert_like_one_worker,
    join,
    on_nodes,
    one_worker,
    solver_of,
    values_of,
)
from tests.transport.jobs import joined
from tests.worker_process import Seat
from tests.workers import WorkerPool

BY_NAME = {case.name: case for case in (*ALL_CASES, DEEP)}


def train_all(seat: Seat, trainings: list[dict[str, str]], steps: int) -> list[list[list[float]]]:
    """The parameters after each training (a case, a kind of solver and a plan) over one transport."""
    found = []
    with joined(seat) as transport:
        for training in trainings:
            case, plan = BY_NAME[training["case"]], CommPlan.from_json(training["plan"])
            worker = join(case, plan, on_nodes(transport, plan), solver_of(case, training["kind"], case.batch))
            worker.solver.step(steps)
            worker.updates.drain()
            worker.close()
            found.append([value.reshape(-1).tolist() for value in values_of(worker.solver)])
        transport.barrier(30.0)
    return found


def assert_processes_like_one_worker(pool: WorkerPool, sample: list[tuple[Case, str, CommPlan]]) -> None:
    """Trains in processes, one training after the other, and compares with one worker that has all their batches."""
    trainings = [{"case": case.name, "kind": kind, "plan": plan.to_json()} for case, kind, plan in sample]
    size = sum(sample[0][2].cluster.node_workers)
    by_rank = pool.results(train_all, size, trainings=trainings, steps=STEPS)  # JSON keeps every bit of a double
    for number, (case, kind, _) in enumerate(sample):
        shapes = [value.shape for value in one_worker(case, kind, size)]
        values = [
            [torch.tensor(v, dtype=torch.float64).view(shape) for v, shape in zip(found[number], shapes, strict=True)]
            for found in by_rank
        ]
        assert_like_one_worker(values, case, kind)


def lose(seat: Seat, plan: str, victim: int, how: str) -> dict[str, Any]:
    """Trains until one worker's exchange fails, or its process dies in it."""
    with joined(seat) as transport:
        parsed = CommPlan.from_json(plan)
        solver = solver_of(DEEP, "SGD", DEEP.batch, torch.float32)
        worker = join(DEEP, parsed, on_nodes(transport, parsed), solver)
        if seat.rank == victim:
            break_down(next(e for e in worker.updates.exchanges if e.members[0].name == "fc7/0"), how)
        try:
            worker.solver.step(1000)
            worker.updates.drain()
        except PeerLost as problem:
            return {"text": str(problem), "ranks": list(problem.ranks)}
        finally:
            worker.close()
    raise AssertionError("nothing was raised")


def break_down(exchange: Exchange, how: str) -> None:
    original, calls = exchange.reduced, []

    def reduced(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) < 4:
            return original(*arguments)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("the cat sat on the cable")

    exchange.reduced = reduced  # type: ignore[method-assign]
