"""Where the rule's histories live: with SERVER and FACTOR_SERVER a piece at each owner, so that memory falls with P. A
snapshot holds them whole, as one worker's does, and goes back to any number of workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from poseidon.comm import Exchange
from poseidon.plan import CommPlan, PlanRequest, Scheme
from poseidon.run.distribute import distribute
from poseidon.solver import Solver
from poseidon.solver.updates import LocalUpdates
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from tests.comm.nets import CLIPPED, DEEP, LENET, TIED, WORDS, Case
from tests.comm.training import SOLVERS, Fed, join, plain_request, plan_of, solver_of, values_of

OWNED = (Scheme.SERVER, Scheme.FACTOR_SERVER)
STEPS = 5


def cut_request(scheme: Scheme) -> PlanRequest:
    return plain_request(scheme=scheme, chunk_bytes=(240.0,))


def history_bytes(thing: object) -> int:
    """Of all histories that a solver and its updates hold."""
    assert isinstance(thing, Solver)
    parts = thing.updates._site._parts.values()  # the test's business is where memory is kept
    held = {h.untyped_storage().data_ptr(): h for slot in (*thing.slots, *parts) for h in slot.history}
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


# -- who holds what ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", [DEEP, LENET, TIED, WORDS, CLIPPED], ids=lambda case: case.name)
@pytest.mark.parametrize("scheme", [*OWNED, Scheme.RING, Scheme.FACTORS])
@pytest.mark.parametrize("size", [2, 5])
def test_owners_divide_a_parameter_among_them(case, scheme, size):
    """Every element of a parameter with owners has exactly one, and parts come as the shards say."""
    plan = plan_of(case, size, cut_request(scheme))

    def work(transport: Transport) -> None:
        worker = join(case, plan, transport, solver_of(case, "SGD", case.batch))
        for exchange in worker.updates.exchanges:
            assert_divided(exchange, size)
        worker.close()
        transport.barrier(60)

    run_workers(size, work)


def assert_divided(exchange: Exchange, size: int) -> None:
    shards = [shard for owner in range(size) for shard in exchange.shards(owner)]
    names = {member.name for member, _ in shards}
    for member in exchange.members:
        count = torch.zeros_like(member.value)
        for other, region in shards:
            if other.name == member.name:
                region.of(count).add_(1)
        assert bool((count == (1 if member.name in names else 0)).all())
    if exchange.unit.scheme is Scheme.SERVER:
        assert names == {member.name for member in exchange.members}
    if exchange.unit.scheme is Scheme.FACTOR_SERVER:
        assert exchange.members[0].name in names
    if exchange.unit.scheme in (Scheme.RING, Scheme.FACTORS, Scheme.ROWS):
        assert not names


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_memory_of_histories_falls_with_the_number_of_workers(kind):
    alone = solver_of(DEEP, kind, DEEP.batch)
    whole = sum(h.nbytes for slot in alone.slots for h in slot.history)

    def work(transport: Transport, plan: CommPlan) -> int:
        worker = join(DEEP, plan, transport, solver_of(DEEP, kind, DEEP.batch))
        worker.solver.step(2)
        worker.updates.drain()
        worker.close()
        return history_bytes(worker.solver)

    for size in (2, 4):
        server = plan_of(DEEP, size, plain_request(scheme=Scheme.SERVER))
        held = run_workers(size, lambda transport, plan=server: work(transport, plan))
        assert sum(held) == whole
        assert max(held) - min(held) <= len(server.order) * 8 * alone.rule.num_histories
        ring = plan_of(DEEP, size, plain_request(scheme=Scheme.RING))
        assert run_workers(size, lambda transport, plan=ring: work(transport, plan)) == [whole] * size


# -- snapshots --------------------------------------------------------------------------------------------------------
def one(case: Case, kind: str, size: int, prefix: Path) -> Solver:
    solver = solver_of(case, kind, case.batch * size, text=f'snapshot_prefix: "{prefix}"')
    solver.run = Fed(solver.net, lambda clock: case.batch_of(clock, size))
    return solver


def team(case: Case, kind: str, plan: CommPlan, prefix: Path, body: Callable[[Solver], None]) -> list[list[Tensor]]:
    """Runs `body` on every worker of a team; the parameters it ends with."""
    size = plan.cluster.num_workers

    def work(transport: Transport) -> list[Tensor]:
        solver = solver_of(case, kind, case.batch, text=f'snapshot_prefix: "{prefix}"')
        with distribute(solver, transport, plan):
            solver.run = Fed(solver.net, lambda clock: case.share_of(clock, transport.rank, size))
            body(solver)
            solver.updates.drain()
        return values_of(solver)

    return run_workers(size, work)


def trained(solver: Solver) -> None:
    solver.step(STEPS)
    solver.snapshot()


@pytest.mark.parametrize("scheme", OWNED)
@pytest.mark.parametrize("kind", SOLVERS)
def test_a_snapshot_of_owners_equals_one_workers(tmp_path, scheme, kind):
    alone = one(LENET, kind, 3, tmp_path / "one")
    trained(alone)
    team(LENET, kind, plan_of(LENET, 3, cut_request(scheme)), tmp_path / "team", trained)
    first, other = (solver_of(LENET, kind, LENET.batch) for _ in range(2))
    first.restore(tmp_path / f"one_iter_{STEPS}.solverstate")
    other.restore(tmp_path / f"team_iter_{STEPS}.solverstate")
    pairs = [*zip(values_of(first), values_of(other), strict=True)]
    pairs += zip(first.updates.histories(), other.updates.histories(), strict=True)
    assert len(pairs) == len(first.slots) * (1 + first.rule.num_histories)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)  # files hold single precision


@pytest.mark.parametrize("scheme", [*OWNED, Scheme.RING])
def test_going_on_from_a_snapshot(tmp_path, scheme):
    """Workers that restore go on as one worker that restores, whoever wrote the snapshot."""
    alone = one(LENET, "Adam", 3, tmp_path / "one")
    trained(alone)
    path = tmp_path / f"one_iter_{STEPS}.solverstate"
    alone.restore(path)
    alone.step(STEPS)

    def go_on(solver: Solver) -> None:
        solver.step(2)  # from somewhere else
        solver.restore(path)
        solver.step(STEPS)

    values = team(LENET, "Adam", plan_of(LENET, 3, cut_request(scheme)), tmp_path / "team", go_on)
    for rank in range(3):
        for mine, expected in zip(values[rank], values_of(alone), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-8, atol=1e-12)


def test_a_snapshot_with_another_plan_is_taken_over(tmp_path):
    """A team restores its plan with a snapshot: histories move from one set of owners to another."""
    plans = [plan_of(LENET, 3, cut_request(scheme)) for scheme in OWNED]
    team(LENET, "Adam", plans[0], tmp_path / "s", trained)
    path = tmp_path / f"s_iter_{STEPS}.solverstate"

    def go_on(solver: Solver) -> None:
        solver.step(2)
        solver.restore(path)
        assert solver.updates.plan == plans[0]
        solver.step(STEPS)

    values = team(LENET, "Adam", plans[1], tmp_path / "t", go_on)
    again = team(LENET, "Adam", plans[0], tmp_path / "u", lambda solver: (solver.restore(path), solver.step(STEPS)))
    for mine, expected in zip(values[0], again[0], strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("scheme", OWNED)
def test_a_solver_is_whole_again_when_histories_are_handed_back(scheme):
    case = replace(DEEP)
    plan = plan_of(case, 3, cut_request(scheme))
    alone = solver_of(case, "Adam", case.batch * 3)
    alone.run = Fed(alone.net, lambda clock: case.batch_of(clock, 3))
    alone.step(STEPS)

    def work(transport: Transport) -> list[Tensor]:
        worker = join(case, plan, transport, solver_of(case, "Adam", case.batch))
        worker.solver.step(STEPS)
        worker.updates.drain()
        worker.updates.hand_back()
        worker.close()
        solver = worker.solver
        solver.updates = LocalUpdates(solver.rule, solver.slots)
        return solver.updates.histories()

    for histories in run_workers(3, work):
        for mine, expected in zip(histories, alone.updates.histories(), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-8, atol=1e-12)
