"""By notified puts P workers give the trajectory of one worker with the P-fold batch, and the same bits everywhere: the
same tests as the collectives' (tests/comm/test_exact.py), up to 16 workers, and over a network that plays tricks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from poseidon.comm.notified import driver
from poseidon.plan import CommPlan, PlanRequest, Scheme
from poseidon.transport.onesided.base import LAST_VALUE
from poseidon.transport.onesided.inproc import Tricks
from tests.comm.nets import CASES, LENET, MLP, TIED, WORDS, Case
from tests.comm.test_exact import LAYOUTS, Choice, single_runs
from tests.comm.training import (
    SOLVERS,
    STEPS,
    assert_like_one_worker,
    assert_replicas,
    plan_of,
    relative_distance,
    train,
)

SCHEMES = (None, Scheme.SERVER, Scheme.TREE, Scheme.FACTORS)
SIZES = (2, 3, 5, 16)


def sample() -> list[Choice]:
    kinds = list(SOLVERS)
    return [
        Choice(case, scheme, kinds[(i + j) % 6], SIZES[(i + j) % 4], (i + 2 * j) % 3)
        for (i, case), (j, scheme) in itertools.product(enumerate(CASES), enumerate(SCHEMES))
    ]


def plan_for(case: Case, size: int, scheme: Scheme | None, layout: int = 0, **options) -> CommPlan:
    return plan_of(case, size, PlanRequest(pattern="gpi", scheme=scheme, **LAYOUTS[layout]), **options)


@pytest.mark.parametrize("choice", sample(), ids=str)
def test_several_workers_equal_one_with_all_their_batches(choice):
    values = train(choice.case, choice.solver, plan_for(choice.case, choice.size, choice.scheme, choice.layout))
    assert_like_one_worker(values, choice.case, choice.solver)


@pytest.mark.parametrize("case", [LENET, TIED, WORDS], ids=lambda case: case.name)
def test_in_single_precision_workers_are_no_further_than_another_order_of_summing(case):
    first, *others = single_runs(case, "SGD", 3)
    allowed = 3 * max(relative_distance(other, first) for other in others)
    assert 0 < allowed < 1e-2
    for scheme in SCHEMES:
        plan = plan_for(case, 3, scheme, dtype=torch.float32)
        values = train(case, "SGD", plan, dtype=torch.float32)
        assert_replicas(values)
        assert relative_distance(values[0], first) <= allowed, scheme


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scheme", [Scheme.SERVER, Scheme.TREE, Scheme.FACTORS])
def test_late_reordered_and_repeated_notifications_change_nothing(monkeypatch, seed, scheme):
    monkeypatch.setattr(driver, "FIRST_VERSION", LAST_VALUE - STEPS // 2)  # versions wrap on the way
    size = (3, 5)[seed % 2]
    plan = plan_for(MLP, size, scheme, 1)
    values = train(MLP, "SGD", plan, tricks=Tricks(seed))
    assert_like_one_worker(values, MLP, "SGD")


def test_chunks_are_trees_of_their_own():
    plan = plan_of(MLP, 3, PlanRequest(pattern="gpi", scheme=Scheme.TREE, fuse_bytes=(0,), chunk_bytes=(64.0,)))
    assert len(plan.order) > 2 * len(plan.units)
    assert math.isfinite(plan.iteration_s)
    assert_replicas(train(MLP, "Adam", plan, 3))
