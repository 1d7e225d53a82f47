"""Costs against messages counted one by one, against the table they are published in, and against Poseidon's rule."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.plan import Cluster, CostModel, FactorShape, Load, RowShape, Scheme
from tests.plan import messages

BPS = 8e6  # a byte takes a microsecond

# P 2 … 6 on nodes with equal and unequal numbers of workers
clusters = st.lists(st.integers(1, 4), min_size=1, max_size=6).map(tuple).filter(lambda nodes: 2 <= sum(nodes) <= 6)
wires = st.sampled_from(["fp32", "bf16", "fp16"])
widths = st.sampled_from([2, 4, 8])


def model(nodes: tuple[int, ...], wire: str = "fp32", **options) -> CostModel:
    return CostModel(Cluster(nodes, bandwidth_bps=BPS, **options), wire)


def wire_width(elem_bytes: int, wire: str) -> int:
    return elem_bytes if wire == "fp32" else 2


def agree(cost, counted: messages.Legs) -> None:
    assert cost.bytes_sent == pytest.approx(counted.most_sent, rel=1e-12, abs=1e-9)
    assert cost.wire_s == pytest.approx(counted.busiest / 1e6, rel=1e-12, abs=1e-15)


class TestCountedMessages:
    @given(clusters, st.integers(1, 20), widths, wires)
    def test_ring(self, nodes, multiple, elem_bytes, wire):
        """What is narrowed is summed by owners, who hand out their shards."""
        num_elems = multiple * len(nodes) * sum(nodes)
        cost = model(nodes, wire).cost(Scheme.RING, Load(num_elems, elem_bytes))
        width = wire_width(elem_bytes, wire)
        agree(cost, (messages.server if width < elem_bytes else messages.ring)(nodes, num_elems, width))

    @given(clusters, st.integers(1, 20), widths, wires)
    def test_server(self, nodes, multiple, elem_bytes, wire):
        num_elems = multiple * sum(nodes)
        cost = model(nodes, wire).cost(Scheme.SERVER, Load(num_elems, elem_bytes))
        agree(cost, messages.server(nodes, num_elems, wire_width(elem_bytes, wire)))

    @given(clusters, st.integers(1, 9), st.integers(1, 30), st.integers(1, 30), widths, wires)
    def test_factors(self, nodes, k, m, n, elem_bytes, wire):
        load = Load(m * n + m, elem_bytes, factors=(FactorShape(k, m, n),))
        agree(model(nodes, wire).cost(Scheme.FACTORS, load), messages.factors(nodes, k, (m, n), elem_bytes))

    @given(clusters, st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.booleans(), widths, wires)
    def test_factor_server(self, nodes, k, multiple, smaller, outputs_larger, elem_bytes, wire):
        larger = math.ceil(smaller / sum(nodes)) * sum(nodes) * multiple
        sides = (larger, smaller) if outputs_larger else (smaller, larger)
        load = Load(larger * smaller, elem_bytes, factors=(FactorShape(k, *sides),))
        counted = messages.factor_server(nodes, k, sides, elem_bytes, wire_width(elem_bytes, wire))
        agree(model(nodes, wire).cost(Scheme.FACTOR_SERVER, load), counted)

    @given(clusters, st.integers(1, 8), st.integers(1, 5), st.integers(8, 40), widths, wires)
    def test_rows(self, nodes, touched, width, total, elem_bytes, wire):
        load = Load(total * width, elem_bytes, rows=RowShape(touched, width, total))
        agree(model(nodes, wire).cost(Scheme.ROWS, load), messages.rows(nodes, touched, width, total, elem_bytes))


@given(st.integers(2, 64), st.integers(1, 512), st.integers(1, 5000), st.integers(1, 5000))
def test_table_of_the_design_with_one_worker_per_node(P, K, M, N):
    """Bytes and FLOP per worker as the design states them, written out again."""
    found = {
        scheme: CostModel(Cluster((1,) * P, BPS, flops=1.0)).cost(
            scheme, Load(M * N, 4, factors=(FactorShape(K, M, N),))
        )
        for scheme in (Scheme.RING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER)
    }
    L, S = max(M, N), min(M, N)
    stated = {
        Scheme.RING: 8 * M * N * (P - 1) / P,
        Scheme.SERVER: 8 * M * N * (P - 1) / P,
        Scheme.FACTORS: 4 * K * (M + N) * (P - 1),
        Scheme.FACTOR_SERVER: 4 * (P - 1) * (K * S + K * L / P) + 4 * M * N * (P - 1) / P,
    }
    assert {s: cost.bytes_sent for s, cost in found.items()} == pytest.approx(stated, rel=1e-12)
    flop = {Scheme.RING: 0, Scheme.SERVER: 0, Scheme.FACTORS: 2 * (P - 1) * K * M * N, Scheme.FACTOR_SERVER: 0}
    assert {s: cost.apply_s for s, cost in found.items()} == pytest.approx(flop)


@given(st.integers(2, 64), st.integers(1, 512), st.integers(1, 5000), st.integers(1, 5000))
def test_fewer_bytes_is_poseidons_published_rule(P, K, M, N):
    """2K(P₁−1)(M+N) ≤ 2MN(P₁+P₂−2)/P₂, with as many servers as workers."""
    costs = CostModel(Cluster((1,) * P, BPS))
    load = Load(M * N, 4, factors=(FactorShape(K, M, N),))
    by_factors, dense = costs.cost(Scheme.FACTORS, load).bytes_sent, costs.cost(Scheme.RING, load).bytes_sent
    left, right = 2 * K * (P - 1) * (M + N) * P, 2 * M * N * (2 * P - 2)
    if left != right:  # at equality rounding decides
        assert (by_factors < dense) == (left < right)


@pytest.mark.parametrize(
    ("num_workers", "sent", "steps"), [(2, 1, 1), (3, 2, 3), (4, 2, 2), (5, 3, 4), (7, 3, 4), (8, 3, 3), (16, 4, 4)]
)
def test_doubling(num_workers, sent, steps):
    """How often the busiest worker sends all elements, and the messages that follow one another, counted by hand."""
    cost = model((1,) * num_workers, "bf16", latency_s=1e-3).cost(Scheme.DOUBLING, Load(10, 4))
    assert cost.bytes_sent == sent * 40
    assert cost.push.latency_s == pytest.approx(2 * steps * 1e-3)  # a round counts as two


class TestSeconds:
    def test_steps_of_latency_and_overhead(self):
        costs = model((1, 2, 3, 1), latency_s=1e-3, overhead_s=1e-4)
        load = Load(64, 4, (FactorShape(2, 8, 8),), RowShape(2, 8, 8), FactorShape(1, 8, 8))
        steps = dict.fromkeys((Scheme.RING, Scheme.DOUBLING, Scheme.SERVER, Scheme.FACTOR_SERVER), 6)
        steps |= dict.fromkeys((Scheme.FACTORS, Scheme.ROWS), 3)
        for scheme, expected in steps.items():
            cost = costs.cost(scheme, load)
            assert (cost.push + cost.pull).latency_s == pytest.approx(expected * 1e-3), scheme
            assert (cost.push + cost.pull).overhead_s == pytest.approx(expected * 1e-4), scheme

    @pytest.mark.parametrize("scheme", [s for s in Scheme if s is not Scheme.LOCAL])
    def test_one_node_moves_through_memory_only(self, scheme):
        load = Load(64, 4, (FactorShape(2, 8, 8),), RowShape(2, 8, 8), FactorShape(1, 8, 8))
        cost = model((4,), latency_s=1.0).cost(scheme, load)
        assert cost.bytes_sent == cost.wire_s == 0
        legs = cost.push + cost.pull
        assert legs.latency_s == 0
        assert legs.local_s > 0

    def test_memory_of_a_node(self):
        """Four workers, 64 elements of 4 bytes: all read, the sum written, all read it: 9 × 256 bytes."""
        costs = model((4, 1), local_bps=8.0)
        cost = costs.cost(Scheme.RING, Load(64, 4))
        assert cost.push.local_s == pytest.approx(9 * 256)
        assert model((1, 1), local_bps=8.0).cost(Scheme.RING, Load(64, 4)).push.local_s == 0

    def test_owners_update_their_share_only(self):
        costs = model((1, 1, 1, 1), update_bps=8.0)
        load = Load(64, 4, (FactorShape(2, 8, 8),), RowShape(2, 8, 8), FactorShape(1, 8, 8))
        seconds = {scheme: costs.cost(scheme, load).apply_s for scheme in Scheme}
        assert seconds == {
            Scheme.LOCAL: 0,
            Scheme.RING: 256,
            Scheme.DOUBLING: 256,
            Scheme.SERVER: 64,
            Scheme.FACTORS: 256,
            Scheme.FACTOR_SERVER: 64,
            Scheme.ROWS: 256,
            Scheme.POWER_SGD: 256,
            Scheme.TREE: 64,
        }

    def test_shares_of_the_bandwidth(self):
        """A megabyte takes a second: gathered at half the rate, pushed at a quarter, all-reduced at all of it."""
        costs = model((1, 1), gather_share=0.5, push_share=0.25)
        load = Load(250_000, 4, (FactorShape(250, 500, 500),), RowShape(50, 500, 500), FactorShape(4, 500, 500))
        seconds = {scheme: costs.cost(scheme, load).wire_s for scheme in Scheme if scheme is not Scheme.LOCAL}
        assert seconds == pytest.approx(
            {
                Scheme.RING: 1.0,
                Scheme.DOUBLING: 1.0,
                Scheme.SERVER: 0.5 / 0.25 + 0.5 / 0.5,
                Scheme.FACTORS: 1.0 / 0.5,
                Scheme.FACTOR_SERVER: 0.5 / 0.5 + 0.25 / 0.25 + 0.5 / 0.5,
                Scheme.ROWS: 50 * 2004 / 1e6 / 0.5,
                Scheme.POWER_SGD: 2 * 4 * 4 * 500 / 1e6 / 0.5,
                Scheme.TREE: 1.0,
            }
        )

    def test_only_what_waits_for_the_owner_is_the_pull(self):
        costs = model((1, 1))
        load = Load(64, 4, (FactorShape(2, 8, 8),), RowShape(2, 8, 8), FactorShape(1, 8, 8))
        pulled = {scheme for scheme in Scheme if costs.cost(scheme, load).pull.wire_s}
        assert pulled == {Scheme.SERVER, Scheme.FACTOR_SERVER, Scheme.TREE}

    def test_notified_puts_take_one_step_or_one_per_level(self):
        """Eight workers, three children each: two levels, on each of which three whole puts are waited for."""
        costs = CostModel(Cluster((1,) * 8, bandwidth_bps=8e6, latency_s=1e-3), pattern="gpi")
        load = Load(250, 4)
        for scheme, steps_s in ((Scheme.SERVER, 1e-3), (Scheme.TREE, 2 * (1e-3 + 3 * 1e-3))):
            cost = costs.cost(scheme, load)
            assert cost.push.latency_s == cost.pull.latency_s == pytest.approx(steps_s)
            assert cost.bytes_sent == 2 * 1000 * 7 / 8
        assert costs.send_s(Scheme.TREE) < costs.send_s(Scheme.SERVER)
