"""Nets trained under staleness, on threads of one process and on processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import torch
from torch import Tensor

from poseidon.comm.events import CommListener
from poseidon.comm.stale.protocol import Mode
from poseidon.errors import PeerLost
from poseidon.net.layers.loss import LossLayer
from poseidon.plan import STALE_SCHEMES, CommPlan, PlanRequest, Scheme
from poseidon.run.servers import serve_tables, workers_of
from poseidon.run.stale_updates import Staleness, StaleUpdates, open_hub
from poseidon.solver import Solver
from poseidon.transport import Transport
from tests.comm.nets import CASES, Case
from tests.comm.training import Fed, solver_of, values_of
from tests.transport.jobs import joined
from tests.worker_process import Seat

BY_NAME = {case.name: case for case in CASES}


def stale_request(scheme: Scheme | None = None, **options: Any) -> PlanRequest:
    return PlanRequest(scheme=scheme, among=STALE_SCHEMES, **options)


def join_stale(
    case: Case,
    plan: CommPlan,
    transport: Transport,
    solver: Solver,
    staleness: Staleness,
    listener: CommListener | None = None,
    serving: Transport | None = None,
) -> StaleUpdates:
    """Makes a solver one of the workers, fed with its share. `serving`: the transport of these and of servers."""
    solver.net.draws.first, solver.net.draws.stride = transport.rank, transport.size
    solver.run = Fed(solver.net, lambda clock: case.share_of(clock, transport.rank, transport.size))
    counting = transport.subgroup(range(transport.size))
    assert counting is not None

    def summed(count: Tensor) -> Tensor:
        total = count.reshape(1).clone()
        counting.all_reduce(total).wait()
        return total.reshape(())

    for layer in solver.net.layers.values():
        if isinstance(layer, LossLayer):
            layer.count_over_workers(transport.size, None if staleness.clocks else summed)
    updates = StaleUpdates(solver, plan, open_hub(serving or transport, staleness), staleness, listener=listener)
    solver.updates = updates
    return updates


# -- processes --------------------------------------------------------------------------------------------------------
def train_processes(seat: Seat, case: str, plan: str, staleness: int, mode: str, steps: int) -> list[list[float]]:
    with joined(seat) as transport:
        solver = solver_of(BY_NAME[case], "SGD", BY_NAME[case].batch)
        told = Staleness(staleness, Mode(mode))
        updates = join_stale(BY_NAME[case], CommPlan.from_json(plan), transport, solver, told)
        solver.step(steps)
        updates.drain()
        updates.close()
        transport.barrier(30.0)
        return [value.reshape(-1).tolist() for value in values_of(solver)]


def lose_process(seat: Seat, case: str, plan: str, victim: int, how: str, servers: int = 0) -> dict[str, Any]:
    """One process is killed (`how` SIGKILL) or stops (SIGSTOP) in the midst of training; what the others hear, and how
    many seconds after."""

    def die() -> None:
        seat.store.set("died", str(time.time()))  # clocks of one host
        os.kill(os.getpid(), getattr(signal, how))

    with joined(seat) as transport:
        workers = workers_of(transport, servers)
        if workers is None:
            threading.Timer(1.0, die).start()
            serve_tables(transport, servers)
            raise AssertionError("a server has outlived its workers")
        solver = solver_of(BY_NAME[case], "SGD", BY_NAME[case].batch)
        told = Staleness(2, num_servers=servers)
        updates = join_stale(BY_NAME[case], CommPlan.from_json(plan), workers, solver, told, serving=transport)
        run, passes = solver.run, []

        def run_or_die(*, backward: bool) -> Any:
            passes.append(1)
            if seat.rank == victim and len(passes) == 6:
                die()
            return run(backward=backward)

        solver.run = run_or_die
        try:
            solver.step(1_000_000)
        except PeerLost as problem:
            told_s = time.time() - float(seat.store.get("died"))
            return {"text": str(problem), "ranks": list(problem.ranks), "clock": solver.iter, "told_s": told_s}
        finally:
            updates.close(wait=False)
    raise AssertionError("nothing was raised")


def gradient_of(form_message: Any, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """What an update adds up to, worked out here."""
    from poseidon.comm.stale.message import Form

    rows, width = shape
    elements = form_message.payload.clone().view(dtype)
    if form_message.form is Form.DENSE:
        return elements.view(shape)
    assert form_message.form is Form.FACTORS
    a, b = elements[: form_message.count * rows], elements[form_message.count * rows :]
    return torch.einsum("kr,kw->rw", a.view(form_message.count, rows), b.view(form_message.count, width))
