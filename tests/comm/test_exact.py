"""P workers give the trajectory of one worker with the P-fold batch, whatever the scheme, and the same bits everywhere.

The full product of nets, schemes, solvers and P takes an hour: it is run with --full. Otherwise it is a sample in which
every pair of a net and a scheme, a scheme and a solver, a net and a solver, and each of these with a P occurs
(`test_the_sample…`). How units are cut and fused, and how many are in flight, changes along; and, where the planner
chooses the schemes, what a message takes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch

from poseidon.plan import CommPlan, PlanRequest, Scheme
from tests.comm.nets import ALL_CASES, LENET, MLP, TIED, WORDS, Case
from tests.comm.training import (
    SOLVERS,
    STEPS,
    Fed,
    assert_like_one_worker,
    assert_replicas,
    plain_request,
    plan_of,
    relative_distance,
    solver_of,
    train,
    values_of,
)

SCHEMES = (None, Scheme.RING, Scheme.DOUBLING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER, Scheme.ROWS)
SIZES = (2, 3, 4, 8)
LAYOUTS = (
    {"fuse_bytes": (0.0,), "chunk_bytes": (math.inf,), "in_flight": 4},
    {"fuse_bytes": (0.0,), "chunk_bytes": (320.0,), "in_flight": 3},
    {"fuse_bytes": (600.0,), "chunk_bytes": (248.0,), "in_flight": 1},
)
LATENCIES_S = (1e-6, 1e-4)  # where bytes count, and where messages do


@dataclass(frozen=True, slots=True)
class Choice:
    case: Case
    scheme: Scheme | None
    solver: str
    size: int
    layout: int
    latency_s: float = LATENCIES_S[0]

    @property
    def plan(self) -> CommPlan:
        request = PlanRequest(scheme=self.scheme, **LAYOUTS[self.layout])
        return plan_of(self.case, self.size, request, latency_s=self.latency_s)

    def __str__(self) -> str:
        return f"{self.case.name}-{self.scheme.value if self.scheme else 'auto'}-{self.solver}-{self.size}"


def sample() -> list[Choice]:
    kinds = list(SOLVERS)
    return [
        Choice(
            case,
            scheme,
            kinds[(i + j) % 6],
            SIZES[(i + 2 * j + j // 2) % 4],
            (i + 2 * j) % 3,
            LATENCIES_S[i % 2],
        )
        for (i, case), (j, scheme) in itertools.product(enumerate(ALL_CASES), enumerate(SCHEMES))
    ]


def everything() -> list[Choice]:
    axes = itertools.product(ALL_CASES, SCHEMES, SOLVERS, SIZES)
    return [Choice(*chosen, number % 3, LATENCIES_S[number % 2]) for number, chosen in enumerate(axes)]


ROUNDED = [LENET, TIED, WORDS]
ROUNDED_SAMPLE = [*itertools.product(ROUNDED, ["SGD", "Adam"], [3]), (LENET, "Adam", 2), (TIED, "SGD", 4)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_full = metafunc.config.getoption("--full")
    if "choice" in metafunc.fixturenames:
        metafunc.parametrize("choice", everything() if is_full else sample(), ids=str)
    elif "kind" in metafunc.fixturenames:
        chosen = list(itertools.product(ROUNDED, ["SGD", "Adam"], SIZES)) if is_full else ROUNDED_SAMPLE
        metafunc.parametrize(("case", "kind", "size"), chosen, ids=str)


def test_the_sample_has_every_pair():
    axes = ("case", "scheme", "solver", "size")
    chosen = sample()
    for one, other in itertools.combinations(axes, 2):
        found = {(getattr(choice, one), getattr(choice, other)) for choice in chosen}
        every = set(itertools.product({a for a, _ in found}, {b for _, b in found}))
        assert found == every, (one, other, every - found)


def test_left_alone_the_planner_mixes_schemes():
    """FACTOR_SERVER is for larger layers than any here."""
    chosen = {unit.scheme for choice in sample() if choice.scheme is None for unit in choice.plan.units}
    assert chosen >= {Scheme.RING, Scheme.DOUBLING, Scheme.SERVER, Scheme.FACTORS, Scheme.ROWS}, chosen


def test_several_workers_equal_one_with_all_their_batches(choice):
    values = train(choice.case, choice.solver, choice.plan)
    assert_like_one_worker(values, choice.case, choice.solver)


@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER])
@pytest.mark.parametrize("large", [1, 200])
def test_large_members_of_a_unit_travel_from_their_own_memory(monkeypatch, scheme, large):
    monkeypatch.setattr("poseidon.comm.several.LARGE_BYTES", large)
    for chunk_bytes in (math.inf, 128.0):
        plan = plan_of(MLP, 3, plain_request(scheme=scheme, chunk_bytes=(chunk_bytes,)))
        assert any(len(unit.params) > 1 for unit in plan.units)
        values = train(MLP, "Adam", plan)
        assert_like_one_worker(values, MLP, "Adam")


# -- single precision -------------------------------------------------------------------------------------------------
def single_runs(case: Case, kind: str, size: int) -> list[list[torch.Tensor]]:
    """One worker in single precision, its samples in several orders."""
    found = []
    for seed in range(5):
        order = torch.randperm(case.batch * size, generator=torch.Generator().manual_seed(seed))
        solver = solver_of(case, kind, case.batch * size, torch.float32)

        def shuffled(clock: int, order: torch.Tensor = order) -> dict[str, torch.Tensor]:
            return {k: v.index_select(case.batch_axis, order) for k, v in case.batch_of(clock, size).items()}

        solver.run = Fed(solver.net, shuffled)
        solver.step(STEPS)
        found.append(values_of(solver))
    return found


def test_in_single_precision_workers_are_no_further_than_another_order_of_summing(case, kind, size):
    first, *others = single_runs(case, kind, size)
    allowed = 3 * max(relative_distance(other, first) for other in others)
    assert 0 < allowed < 1e-2
    for scheme in SCHEMES:
        values = train(case, kind, plan_of(case, size, plain_request(scheme=scheme)), dtype=torch.float32)
        assert_replicas(values)
        assert relative_distance(values[0], first) <= allowed, scheme
