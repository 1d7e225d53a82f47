"""Nodes with several workers, and with different numbers of them: exact like all others, and one copy on the wire."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from poseidon.plan import PlanRequest, Scheme
from tests.comm.nets import ALL_CASES, CLIPPED, LENET, MLP, WORDS, Case
from tests.comm.test_bytes import WIDTHS, Sizes
from tests.comm.test_exact import LAYOUTS, SCHEMES
from tests.comm.training import (
    SOLVERS,
    assert_like_one_worker,
    assert_replicas,
    bytes_of_an_iteration,
    bytes_of_rows,
    one_worker,
    plain_request,
    plan_of,
    train,
)

NODES = ((2,), (3,), (4,), (2, 1), (1, 2), (2, 2), (1, 2, 1), (3, 1, 4))


def choices():
    kinds = list(SOLVERS)
    pairs = itertools.product(enumerate(ALL_CASES), enumerate(SCHEMES))
    return [
        pytest.param(case, scheme, kinds[(i + 2 * j) % 6], NODES[(3 * i + j) % len(NODES)], LAYOUTS[(i + j) % 3],
                     id=f"{case.name}-{scheme.value if scheme else 'auto'}-{NODES[(3 * i + j) % len(NODES)]}")
        for (i, case), (j, scheme) in pairs
    ]  # fmt: skip


@pytest.mark.parametrize(("case", "scheme", "kind", "nodes", "layout"), choices())
def test_workers_on_nodes_equal_one_with_all_their_batches(case, scheme, kind, nodes, layout):
    values = train(case, kind, plan_of(case, nodes, PlanRequest(scheme=scheme, **layout)))
    assert_like_one_worker(values, case, kind)


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER, Scheme.FACTOR_SERVER])
@pytest.mark.parametrize("nodes", [(2, 1), (1, 3), (2, 2)])
def test_narrow_wires_keep_replicas_alike(nodes, scheme, wire):
    """Nothing is lost, only late: with a small step the parameters stay near those of a wide wire."""
    values = train(MLP, "SGD", plan_of(MLP, nodes, plain_request(scheme=scheme, wire=wire)))
    assert_replicas(values)
    for mine, expected in zip(values[0], one_worker(MLP, "SGD", sum(nodes)), strict=True):
        assert not torch.equal(mine, expected)
        torch.testing.assert_close(mine, expected, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER, Scheme.FACTOR_SERVER])
def test_a_narrow_wire_means_nothing_inside_a_node(scheme):
    values = train(CLIPPED, "Adam", plan_of(CLIPPED, (3,), plain_request(scheme=scheme, wire="bf16")))
    assert_like_one_worker(values, CLIPPED, "Adam")


def test_the_same_nodes_give_the_same_bits_again():
    plan = plan_of(LENET, (2, 1), PlanRequest())
    first, again = (train(LENET, "Adam", plan, dtype=torch.float32) for _ in range(2))
    for mine, theirs in zip(first[0], again[0], strict=True):
        assert torch.equal(mine, theirs)


# -- bytes ------------------------------------------------------------------------------------------------------------
def sent_by_nodes(case: Case, request: PlanRequest, nodes: tuple[int, ...]) -> list[int]:
    """What the workers of each node send to other nodes in the third iteration, together."""
    sent = iter(bytes_of_an_iteration(case, request, nodes))
    return [sum(itertools.islice(sent, count)) for count in nodes]


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER])
@pytest.mark.parametrize("nodes", [(2, 2), (3, 1), (2, 1, 1), (2, 3, 1)], ids=str)
def test_a_node_sends_what_the_plan_predicts(nodes, scheme, wire):
    """The busiest one; a bias sent along is all that differs. Blocks go around a ring, also the smallest."""
    sizes = Sizes(200, 500, 50)
    request = plain_request(scheme=scheme, wire=wire)
    sent = sent_by_nodes(sizes.case(), request, nodes)
    predicted = plan_of(sizes.case(), nodes, request, torch.float32).bytes_sent
    assert predicted - 4 * len(nodes) <= max(sent) <= predicted + 2 * 4 * sizes.outputs


@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER])
@pytest.mark.parametrize("wire", ["fp32", "fp16"])
@pytest.mark.parametrize("nodes", [(2, 2), (4, 4), (3, 3, 3)], ids=str)
def test_one_copy_crosses_the_network_however_many_workers_there_are(nodes, scheme, wire):
    sizes = Sizes(7, 5, 3)
    elems, num_nodes = sizes.weight + sizes.outputs, len(nodes)
    sent = sent_by_nodes(sizes.case(), plain_request(scheme=scheme, wire=wire), nodes)
    assert sum(sent) == pytest.approx(2 * WIDTHS[wire] * elems * (num_nodes - 1), abs=num_nodes)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_single_node_sends_nothing(scheme):
    assert sent_by_nodes(WORDS, plain_request(scheme=scheme), (3,)) == [0]


def test_a_row_leaves_its_node_once():
    nodes = (2, 1)
    sent = sent_by_nodes(WORDS, plain_request(scheme=Scheme.ROWS), nodes)
    plan = plan_of(WORDS, nodes, plain_request(scheme=Scheme.ROWS), torch.float32)
    dense = sum(2 * 4 * unit.num_elems // 2 for unit in plan.units if unit.scheme is Scheme.RING)
    words = [[WORDS.share_of(i, rank, 3)["word"].numpy() for i in range(3)] for rank in range(3)]
    touched = [[len(np.union1d(*pair)) for pair in zip(*words[:2], strict=True)], [len(np.unique(w)) for w in words[2]]]
    assert [found - dense for found in sent] == [bytes_of_rows(numbers, 4) for numbers in touched]
