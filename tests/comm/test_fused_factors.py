"""Several weights' factors in one unit: one worker's trajectory, the bytes of the sum, and only where rows agree."""

from __future__ import annotations

import math

import pytest

from poseidon.plan import (
    Cluster,
    FactorShape,
    LayerProfile,
    NetProfile,
    ParamProfile,
    PlanRequest,
    Scheme,
    make_plan,
)
from tests.comm.nets import DEEP, IGNORING, LENET, MLP, SIAMESE, TIED, Case
from tests.comm.training import assert_like_one_worker, bytes_of_an_iteration, plan_of, train


def together(**options) -> PlanRequest:
    return PlanRequest(scheme=Scheme.FACTORS, fuse_bytes=(math.inf,), **options)


def weights_of(plan) -> list[list[tuple[int, ...]]]:
    """By unit that travels as factors: the shapes of its weights."""
    units = [unit for unit in plan.units if unit.scheme is Scheme.FACTORS]
    return [[shape for shape in unit.shapes if len(shape) == 2] for unit in units]


@pytest.mark.parametrize("chunk_bytes", [math.inf, 100.0])
@pytest.mark.parametrize("case", [MLP, LENET, DEEP], ids=lambda case: case.name)
def test_like_one_worker(case: Case, chunk_bytes: float):
    """The first has a transposed weight, the second no factors for its convolutions."""
    plan = plan_of(case, 3, together(chunk_bytes=(chunk_bytes,)))
    (weights,) = weights_of(plan)
    assert len(weights) > 1
    num_sends = sum(plan.units[send.unit].scheme is Scheme.FACTORS for send in plan.order)
    assert (num_sends == 1) == math.isinf(chunk_bytes)
    assert_like_one_worker(train(case, "SGD", plan), case, "SGD")


@pytest.mark.parametrize("case", [SIAMESE, TIED, IGNORING], ids=lambda case: case.name)
def test_shared_weights_and_workers_of_nodes(case: Case):
    plan = plan_of(case, (2, 1), together())
    assert_like_one_worker(train(case, "Adam", plan), case, "Adam")


@pytest.mark.parametrize("size", [2, 4])
def test_bytes_are_the_sum(size: int):
    (weights,) = weights_of(plan_of(MLP, size, together()))
    assert sorted(map(sum, weights)) == [10, 13]  # 7 × 6 and 7 × 3, stored the other way round
    sent = bytes_of_an_iteration(MLP, together(), size)
    assert sent == [4 * MLP.batch * (10 + 13) * (size - 1)] * size


def net_of(*rows: int) -> NetProfile:
    """Fully-connected layers of 256 × 256 with so many rows of factors each."""
    params = [ParamProfile(f"w{i}", (256, 256), factors=FactorShape(k, 256, 256)) for i, k in enumerate(rows)]
    layers = [LayerProfile(param.name, 1e-5, 2e-5, (param.name,)) for param in params]
    return NetProfile(tuple(layers), tuple(params))


def test_what_has_other_rows_stays_apart():
    plan = make_plan(net_of(8, 4, 8, 4), Cluster((1,) * 4, 1e9, 1e-3), together())
    assert sorted(unit.params for unit in plan.units) == [("w0", "w2"), ("w1", "w3")]


def test_many_small_layers_are_put_together_where_messages_count():
    """Each alone takes three messages of a millisecond; together they take three."""
    net, cluster = net_of(*[4] * 12), Cluster((1,) * 4, 1e10, 1e-3)
    apart = make_plan(net, cluster, PlanRequest(scheme=Scheme.FACTORS, fuse_bytes=(0,), in_flight=1))
    found = make_plan(net, cluster, PlanRequest(in_flight=1))
    assert {unit.scheme for unit in found.units} == {Scheme.FACTORS}
    assert len(found.order) < 4 < len(apart.order) == 12
    assert found.iteration_s < 0.5 * apart.iteration_s
    assert found.bytes_sent == apart.bytes_sent == 12 * 4 * 4 * 512 * 3


def test_notified_puts_take_each_weight_by_itself():
    plan = make_plan(net_of(8, 8), Cluster((1,) * 4, 1e9, 1e-3), together(pattern="gpi"))
    assert [unit.params for unit in plan.units] == [("w0",), ("w1",)]
