"""Figures as people write them, and clusters that make no sense."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.errors import PlanError, UsageError
from poseidon.plan import Cluster, parse_bandwidth, parse_nodes, parse_scheme, parse_seconds
from poseidon.plan.cluster import rate_text


class TestBandwidth:
    @pytest.mark.parametrize(
        ("text", "bps"),
        [
            ("1gbit", 1e9),
            ("200mbit", 2e8),
            ("10gbit", 1e10),
            ("2.5Gbit/s", 2.5e9),
            (" 40 GBIT ", 4e10),
            ("1e3kbit", 1e6),
            (".5mbit", 5e5),
            ("9600bit", 9600),
            ("1.tbit", 1e12),
        ],
    )
    def test_read(self, text, bps):
        assert parse_bandwidth(text) == pytest.approx(bps, rel=1e-15)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "1",
            "gbit",
            "1gbps",
            "1 GB/s",
            "-1gbit",
            "0gbit",
            "nangbit",
            "infgbit",
            "1e999gbit",
            "1,5gbit",
            "1gbit!",
            "１gbit",
        ],
    )
    def test_refused_with_an_example(self, text):
        with pytest.raises(UsageError) as caught:
            parse_bandwidth(text)
        assert str(caught.value).startswith("a bandwidth is a number above 0 with one of bit, kbit, mbit, gbit, tbit")
        assert repr(text) in str(caught.value)

    def test_for_people(self):
        assert [rate_text(bps) for bps in (9.4e8, 1e10, 64e3, 300)] == [
            "940 Mbit/s",
            "10 Gbit/s",
            "64 kbit/s",
            "300 bit/s",
        ]


class TestSeconds:
    @pytest.mark.parametrize(
        ("text", "s"), [("0.1ms", 1e-4), ("50us", 5e-5), ("3µs", 3e-6), ("2s", 2), ("0ms", 0), ("7NS", 7e-9)]
    )
    def test_read(self, text, s):
        assert parse_seconds(text) == pytest.approx(s, rel=1e-12)

    @pytest.mark.parametrize("text", ["", "1", "ms", "-1ms", "1min", "1e9999s"])
    def test_refused(self, text):
        with pytest.raises(UsageError, match=r"a time is a number with one of ns, us, ms, s, like 0\.1ms, got"):
            parse_seconds(text)


class TestNodes:
    @pytest.mark.parametrize(
        ("text", "nodes"),
        [("2x4", (4, 4)), ("4,4,2", (4, 4, 2)), ("2x4,1x2", (4, 4, 2)), ("8", (8,)), (" 2 X 1 , 3", (1, 1, 3))],
    )
    def test_read(self, text, nodes):
        assert parse_nodes(text) == nodes

    @pytest.mark.parametrize("text", ["", "x4", "2x", "0x4", "2x0", "4,,2", "2x4x2", "-1", "two", "99999999x9"])
    def test_refused(self, text):
        with pytest.raises(UsageError, match="nodes are written NODESxWORKERS, like 2x4"):
            parse_nodes(text)


def test_schemes_by_name():
    names = {"ring": "RING", "FACTOR_SERVER": "FACTOR_SERVER", " factor-server ": "FACTOR_SERVER", "Rows": "ROWS"}
    assert {text: parse_scheme(text).name for text in names} == names
    known = ", ".join(("local", "ring", "doubling", "server", "factors", "factor-server", "rows", "powersgd", "tree"))
    with pytest.raises(UsageError, match=f"a scheme is one of {known}, got 'bush'"):
        parse_scheme("bush")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"node_workers": ()}, "at least one node"),
        ({"node_workers": (1, 0)}, "each with at least one worker"),
        ({"bandwidth_bps": 0.0}, "bandwidth_bps must be above 0, got 0"),
        ({"bandwidth_bps": math.nan}, "bandwidth_bps must be above 0"),
        ({"flops": -1.0}, "flops must be above 0"),
        ({"latency_s": -1e-9}, "latency_s must be seconds, 0 or more"),
        ({"overhead_s": math.inf}, "overhead_s must be seconds, 0 or more"),
        ({"gather_share": 1.01}, "gather_share must be above 0 and at most 1, got 1.01"),
        ({"push_share": 0.0}, "push_share must be above 0 and at most 1"),
        ({"send_s": math.nan}, "send_s must be seconds, 0 or more"),
        ({"collective_s": -1e-3}, "collective_s must be seconds, 0 or more"),
    ],
)
def test_clusters_that_cannot_be(options, message):
    with pytest.raises(PlanError, match=message):
        Cluster(**{"node_workers": (1, 1), "bandwidth_bps": 1e9, **options})


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ((1,), "1 node with one worker each"),
        ((1, 1), "2 nodes with one worker each"),
        ((4, 4), "8 workers on 2 nodes (4 each)"),
        ((4, 2, 3), "9 workers on 3 nodes (2 to 4 each)"),
        ((4,), "4 workers on 1 node (4 each)"),
    ],
)
def test_described(nodes, text):
    assert Cluster(nodes, 9.4e8).describe() == f"{text}, 940 Mbit/s of payload per node, 0.1 ms per message"


@given(
    st.lists(st.integers(1, 100), min_size=1).map(tuple),
    st.floats(1, 1e15),
    st.floats(0, 10),
    st.one_of(st.floats(1, 1e20), st.just(math.inf)),
)
def test_json_round_trip(nodes, bandwidth_bps, latency_s, flops):
    cluster = Cluster(nodes, bandwidth_bps, latency_s, flops=flops)
    assert Cluster.from_json(cluster.to_json()) == cluster
