"""The lines that rank 0 shows before training."""

from __future__ import annotations

import pytest

from poseidon.plan import Cluster
from poseidon.run.cards import Card
from poseidon.run.welcome import Crew, batch_lines, cluster_lines, links_line, plan_lines
from tests.run.jobs import built, plan_for, solver_param
from tests.solver.small import net_text


def crew(hosts: str, threads: list[int], *, asked: bool = False, nodes: list[int] | None = None) -> Crew:
    names = hosts.split()
    cards = [Card(host, None, (0,), count if asked else None, "lo") for host, count in zip(names, threads, strict=True)]
    return Crew(cards, nodes or [sorted(set(names)).index(name) for name in names], threads)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (crew("a a", [1, 1]), "2 workers on host a; 1 thread each, the cores of each host divided"),
        (
            crew("a b a", [4, 8, 4]),
            "3 workers on 2 hosts: a (2), b (1); 4 to 8 threads each, the cores of each host div",
        ),
        (crew("a b", [3, 3], asked=True), "2 workers on 2 hosts: a (1), b (1); 3 threads each, as asked for"),
        (crew("a a", [1, 1], nodes=[0, 1]), "2 workers on 2 nodes: a (1), a (1); 1 thread each"),
        (crew(" ".join("abcdefghij"), [1] * 10), "10 workers on 10 hosts: a (1), b (1), c (1), d (1), e (1), f (1), "),
    ],
)
def test_cluster(found, text):
    assert cluster_lines(found)[0].startswith(f"cluster   {text}")


def test_many_hosts_are_counted():
    assert " g (1), h (1) and 2 more;" in cluster_lines(crew(" ".join("abcdefghij"), [1] * 10))[0]


def test_links_and_plan(listing):
    solver, _ = built(solver_param(net_text(listing)))
    plan = plan_for(solver, 2)
    card = Card("a", None, (0,), None, "eth0 (10.0.0.5), on the way to the master a")
    assert plan.cluster == Cluster((1, 1), bandwidth_bps=1e9)
    assert links_line(card, plan, "measured") == (
        "links     eth0 (10.0.0.5), on the way to the master a: 1 Gbit/s, 0.1 ms per message, measured"
    )
    lines = plan_lines(plan, "")
    assert lines[0].startswith("wire ")
    assert any(line.startswith("fc1/0 ") for line in lines)
    assert any(line.startswith("iteration ") for line in lines)
    assert plan_lines(plan, "snap_iter_4.solverstate") == [
        "plan      the one of snap_iter_4.solverstate, so that sums have the same bits",
        *lines,
    ]


def test_batch(listing):
    solver, _ = built(solver_param(net_text(listing, batch=4)))
    assert batch_lines(solver.net, 3, 1) == ["batch     3 workers × 4 = 12 samples per iteration"]
    assert batch_lines(solver.net, 3, 2) == ["batch     3 workers × 4 × 2 passes = 24 samples per iteration"]
    unknown = 'layer { name: "d" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 } } }'
    assert batch_lines(built(solver_param(unknown))[0].net, 3, 1) == []
