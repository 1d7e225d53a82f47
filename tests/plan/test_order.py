"""Fusing and cutting."""

from __future__ import annotations

import pytest

from poseidon.plan import (
    Cluster,
    FactorShape,
    LayerProfile,
    NetProfile,
    Order,
    ParamProfile,
    PlanRequest,
    Scheme,
    make_plan,
)

CLUSTER = Cluster((1, 1, 1), 1e9)


def net(*sizes_kb: int) -> NetProfile:
    params = tuple(ParamProfile(f"p{i}", (kb * 250,)) for i, kb in enumerate(sizes_kb))
    return NetProfile(tuple(LayerProfile(f"l{i}", 0.01, 0.01, (p.name,)) for i, p in enumerate(params)), params)


def plan(profile: NetProfile, fuse_kb: float = 0, chunk_kb: float = float("inf"), **options):
    request = PlanRequest(fuse_bytes=(fuse_kb * 1000,), chunk_bytes=(chunk_kb * 1000,), **options)
    return make_plan(profile, CLUSTER, request)


def groups(found) -> list[tuple[str, ...]]:
    return [unit.params for unit in found.units]


class TestFusing:
    def test_nothing_is_fused_without_a_size(self):
        assert groups(plan(net(1, 1, 1))) == [("p0",), ("p1",), ("p2",)]

    def test_from_the_last_layer_until_there_is_enough_and_the_first_is_what_is_left(self):
        assert groups(plan(net(2, 3, 1, 9, 4, 4), fuse_kb=8)) == [("p0", "p1", "p2"), ("p3",), ("p4", "p5")]
        assert groups(plan(net(1, 2, 3, 9, 4, 4), fuse_kb=8)) == [("p0", "p1", "p2"), ("p3",), ("p4", "p5")]
        assert groups(plan(net(1, 5, 3), fuse_kb=8)) == [("p0",), ("p1", "p2")]

    def test_past_what_travels_otherwise_and_past_what_does_not_travel(self):
        params = (
            ParamProfile("a", (250,)),
            ParamProfile("statistics", (250,), learns=False),
            ParamProfile("w", (100, 100), factors=FactorShape(1, 100, 100)),
            ParamProfile("b", (250,)),
        )
        profile = NetProfile(tuple(LayerProfile(p.name, 0.0, 0.0, (p.name,)) for p in params), params)
        found = plan(profile, fuse_kb=100, scheme=Scheme.FACTORS)
        assert groups(found) == [("a", "b"), ("w",), ("statistics",)]
        assert found.units[0].reason == "asked for"
        assert plan(profile, fuse_kb=100).units[0].reason == "2 parameters small enough to travel together"


class TestCutting:
    @pytest.mark.parametrize(
        ("chunk_kb", "lengths"), [(10, [2500]), (9, [1250] * 2), (4, [833, 833, 834]), (0.004, [1] * 2500)]
    )
    def test_fewest_pieces_of_nearly_equal_length(self, chunk_kb, lengths):
        assert [send.stop - send.start for send in plan(net(10), chunk_kb=chunk_kb).order] == lengths

    def test_smaller_than_an_element_is_an_element(self):
        assert len(plan(net(1), chunk_kb=1e-9).order) == 250

    def weight(self, m: int, n: int) -> NetProfile:
        params = (
            ParamProfile("w", (m, n), factors=FactorShape(8, m, n)),
            ParamProfile("b", (m,), rides_with="w"),
        )
        return NetProfile((LayerProfile("fc", 0.1, 0.1, ("w", "b")),), params)

    @pytest.mark.parametrize("scheme", [Scheme.FACTORS, Scheme.FACTOR_SERVER])
    def test_what_the_runtime_sends_whole_is_not_cut(self, scheme):
        found = plan(self.weight(60, 100), chunk_kb=1, scheme=scheme, whole=(scheme,))
        assert [(send.start, send.stop) for send in found.order] == [(0, 6060)]

    @pytest.mark.parametrize(("chunk_kb", "rows"), [(0.001, 1), (1, 1), (1.3, 2), (3.2, 4), (6, 8)])
    def test_factors_are_cut_into_rows(self, chunk_kb, rows):
        """8 rows of 160 elements of 4 bytes go to 2 others: 10 240 bytes, of which a row counts 640."""
        found = plan(self.weight(60, 100), chunk_kb=chunk_kb, scheme=Scheme.FACTORS)
        assert [send.rows(6060, 8) for send in found.order] == [(row, row + rows) for row in range(0, 8, rows)]
        assert [send.start for send in found.order] == [row * (6060 // 8) for row in range(0, 8, rows)]
        assert found.order[-1].stop == 6060
        assert found.bytes_sent == 10240

    def test_more_rows_than_elements_are_not_cut(self):
        params = (ParamProfile("w", (2, 3), factors=FactorShape(7, 2, 3)),)
        found = plan(NetProfile((LayerProfile("fc", 0.1, 0.1, ("w",)),), params), chunk_kb=1e-3, scheme=Scheme.FACTORS)
        assert [send.rows(6, 7) for send in found.order] == [(0, 7)]

    @pytest.mark.parametrize(("m", "n"), [(60, 100), (100, 60)])
    def test_slices_are_cut_whole(self, m, n):
        """100 slices of 60 elements, 240 bytes: at most 4 in 1000 bytes. The bias comes with the last."""
        found = plan(self.weight(m, n), chunk_kb=1, scheme=Scheme.FACTOR_SERVER)
        bounds = [(send.start, send.stop) for send in found.order]
        assert len(bounds) == 25
        assert all(start % 60 == 0 for start, _ in bounds)
        assert {stop - start for start, stop in bounds[:-1]} == {240}
        assert bounds[-1] == (5760, 6000 + m)

    def test_cutting_slices_adds_no_bytes(self):
        whole = plan(self.weight(600, 1000), scheme=Scheme.FACTOR_SERVER)
        options = {"scheme": Scheme.FACTOR_SERVER, "orders": (Order.READY,)}
        pieces = plan(self.weight(600, 1000), chunk_kb=100, **options)
        assert len(pieces.order) > 20
        assert pieces.bytes_sent == whole.bytes_sent
        steps = 2 * (3 - 1) * CLUSTER.latency_s
        wire_s = whole.units[0].seconds - steps
        assert pieces.units[0].seconds - len(pieces.order) * steps == pytest.approx(wire_s)


def test_ready_order_is_backward_order():
    found = plan(net(5, 7, 3), chunk_kb=2, orders=(Order.READY,))
    assert [send.unit for send in found.order] == [2] * 2 + [1] * 4 + [0] * 3
