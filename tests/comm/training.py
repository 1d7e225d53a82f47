"""Solvers trained on one worker and on several, from the same batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from poseidon.comm.events import CommListener
from poseidon.net import Net
from poseidon.net.layers.loss import LossLayer
from poseidon.plan import Cluster, CommPlan, PlanRequest, make_plan
from poseidon.run.layer_times import estimated_times
from poseidon.run.profile import profile_net
from poseidon.run.shards import share_batch
from poseidon.run.updates import DistributedUpdates
from poseidon.solver import NetOptions, Solver
from poseidon.solver.passes import PassResult
from poseidon.spec import parse_net, parse_solver
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from poseidon.transport.levels import share_nodes
from poseidon.transport.onesided.inproc import Tricks
from tests.comm.nets import DEEP, Case

SOLVERS = {
    "SGD": "base_lr: 0.05 momentum: 0.9",
    "Nesterov": "base_lr: 0.03 momentum: 0.9",
    "AdaGrad": "base_lr: 0.05 delta: 1e-3",
    "RMSProp": "base_lr: 0.02 rms_decay: 0.95 delta: 1e-3",
    "AdaDelta": "base_lr: 1 momentum: 0.9 delta: 1e-4",
    "Adam": "base_lr: 0.02 momentum: 0.9 momentum2: 0.99 delta: 1e-3",
}
STEPS = 20


class Fed:
    """A pass over the batches that `batch_at` gives for each clock."""

    def __init__(self, net: Net, batch_at: Callable[[int], dict[str, Tensor]]) -> None:
        self.net, self.batch_at = net, batch_at

    def __call__(self, *, backward: bool) -> PassResult:
        outputs = self.net(self.batch_at(self.net.draws.clock))
        assert outputs.loss is not None
        if backward:
            outputs.loss.backward()
        return PassResult(outputs.loss.detach(), {})


def solver_of(case: Case, kind: str, batch: int, dtype: torch.dtype = torch.float64, text: str = "") -> Solver:
    param = parse_solver(
        f'type: "{kind}" lr_policy: "fixed" max_iter: 1000 weight_decay: 0.01 random_seed: 7 solver_mode: CPU '
        f"snapshot_after_train: false {SOLVERS[kind]} {case.settings} {text}"
    )
    param.net_param.CopyFrom(parse_net(case.text(batch)).net)
    return Solver(param, options=NetOptions(dtype=dtype))


@cache
def one_worker(case: Case, kind: str, size: int) -> list[Tensor]:
    """The parameters after training one worker with the batch of `size`, in double precision."""
    solver = solver_of(case, kind, case.batch * size)
    solver.run = Fed(solver.net, lambda clock: case.batch_of(clock, size))
    solver.step(STEPS)
    return values_of(solver)


def values_of(solver: Solver) -> list[Tensor]:
    return [entry.value.detach().clone() for entry in solver.net.learnable]


def plan_of(
    case: Case,
    size: int | tuple[int, ...],
    request: PlanRequest,
    dtype: torch.dtype = torch.float64,
    latency_s: float = 1e-6,
) -> CommPlan:
    """`size`: how many workers there are, each on a node of its own, or how many there are on each node."""
    nodes = (1,) * size if isinstance(size, int) else size
    solver = solver_of(case, "SGD", case.batch, dtype)
    profile = profile_net(
        solver.net,
        estimated_times(solver.net, 1e9),
        iter_size=solver.param.iter_size,
        needs_all_gradients=solver.param.clip_gradients >= 0,
    )
    return make_plan(profile, Cluster(node_workers=nodes, bandwidth_bps=1e8, latency_s=latency_s), request)


def plain_request(**options) -> PlanRequest:
    """Every parameter by itself, in one piece."""
    return replace(PlanRequest(fuse_bytes=(0,), chunk_bytes=(math.inf,)), **options)


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several workers: its solver, set up to exchange by a plan."""

    solver: Solver
    updates: DistributedUpdates

    def close(self) -> None:
        self.updates.close()


def join(
    case: Case,
    plan: CommPlan,
    transport: Transport,
    solver: Solver,
    *,
    averages: bool = True,
    listener: CommListener | None = None,
) -> Worker:
    """Makes a solver one of the workers, fed with its share."""
    share_batch(solver.net, transport.rank, transport.size)
    solver.run = Fed(solver.net, lambda clock: case.share_of(clock, transport.rank, transport.size))
    counting = transport.subgroup(range(transport.size))  # never among the gradients, whose order is the plan's
    assert counting is not None

    def summed(count: Tensor) -> Tensor:
        total = count.reshape(1).clone()
        counting.all_reduce(total).wait()
        return total.reshape(())

    for layer in solver.net.layers.values():
        if isinstance(layer, LossLayer):
            layer.count_over_workers(transport.size, summed)
    updates = DistributedUpdates(solver, plan, transport, averages=averages, listener=listener)
    solver.updates = updates
    return Worker(solver, updates)


def on_nodes(transport: Transport, plan: CommPlan) -> Transport:
    """The transport of a worker whose neighbours share its node, if the plan says so."""
    counts = plan.cluster.node_workers
    sharing = share_nodes(transport, [node for node, count in enumerate(counts) for _ in range(count)])
    assert sharing.problem == ""
    return sharing.transport


def train(
    case: Case,
    kind: str,
    plan: CommPlan,
    steps: int = STEPS,
    dtype: torch.dtype = torch.float64,
    tricks: Tricks | None = None,
) -> list[list[Tensor]]:
    """The parameters of every worker after training together."""

    def work(transport: Transport) -> list[Tensor]:
        worker = join(case, plan, on_nodes(transport, plan), solver_of(case, kind, case.batch, dtype))
        worker.solver.step(steps)
        worker.updates.drain()
        worker.close()
        return values_of(worker.solver)

    return run_workers(plan.cluster.num_workers, work, tricks=tricks)


def join_deep(plan: CommPlan, transport: Transport, listener: CommListener | None = None) -> Worker:
    """One that trains the deep net."""
    return join(DEEP, plan, transport, solver_of(DEEP, "SGD", DEEP.batch), listener=listener)


def caught(worker: Worker, steps: int = 4) -> BaseException:
    """What training ends with."""
    try:
        worker.solver.step(steps)
        worker.updates.drain()
    except Exception as problem:  # whatever it is, the test looks at it
        return problem
    finally:
        worker.close()
    raise AssertionError("nothing was raised")


def bytes_of_an_iteration(case: Case, request: PlanRequest, size: int | tuple[int, ...]) -> list[int]:
    """What every worker sends to other nodes in its third iteration; `size` as in `plan_of`."""
    plan = plan_of(case, size, request, torch.float32)

    def work(flat: Transport) -> int:
        transport = on_nodes(flat, plan)
        worker = join(case, plan, transport, solver_of(case, "SGD", case.batch, torch.float32))
        worker.solver.step(2)
        worker.updates.drain()
        before = transport.bytes_sent
        worker.solver.step(1)
        worker.updates.drain()
        worker.close()
        return transport.bytes_sent - before

    return run_workers(sum(plan.cluster.node_workers), work)


def bytes_of_rows(touched: Sequence[int], width: int) -> int:
    """What a table of so many rows of `width` floats sends to each of the others, the last of several times."""
    room = 0
    for number in touched[:-1]:  # room for what there was, unless that is much less than before
        room = number + number // 32 if number > room or 4 * number < 3 * room else room
    numbers = 4 * (room + room % 2)  # up to the next 8 bytes
    return 8 + numbers + room * 4 * width + max(0, touched[-1] - room) * (4 + 4 * width)


def assert_replicas(values: list[list[Tensor]]) -> None:
    for other in values[1:]:
        for mine, theirs in zip(values[0], other, strict=True):
            assert torch.equal(mine, theirs)


def assert_like_one_worker(values: list[list[Tensor]], case: Case, kind: str) -> None:
    """All workers have the same bits, and what one worker with all their batches has."""
    assert_replicas(values)
    for mine, expected in zip(values[0], one_worker(case, kind, len(values)), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-8, atol=1e-12)


def relative_distance(one: list[Tensor], other: list[Tensor]) -> float:
    """‖a − b‖ / ‖b‖ over all parameters."""
    difference = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(one, other, strict=True))
    return math.sqrt(difference / sum(float(b.double().square().sum()) for b in other))
