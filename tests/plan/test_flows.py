"""Trees of workers: everybody is in each once, roots share the work, shapes are those a brute search finds."""

from __future__ import annotations

import json

import pytest

from poseidon.errors import PlanError, UsageError
from poseidon.plan import (
    Cluster,
    CommPlan,
    LayerProfile,
    NetProfile,
    ParamProfile,
    PlanRequest,
    Scheme,
    flows_of,
    make_plan,
    parse_overrides,
)
from poseidon.plan.trees import tree_arity, tree_levels


def profile(*sizes: int) -> NetProfile:
    params = tuple(ParamProfile(f"l{i}/0", (n,), 4, True, None, None, None) for i, n in enumerate(sizes))
    layers = tuple(LayerProfile(f"l{i}", 1e-3, 2e-3, (f"l{i}/0",)) for i in range(len(sizes)))
    return NetProfile(layers, params, False)


def plan(size: int, *sizes: int, **options) -> CommPlan:
    request = PlanRequest(pattern="gpi", fuse_bytes=(0,), **options)
    return make_plan(profile(*sizes), Cluster((1,) * size, bandwidth_bps=1e9), request)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 13, 16])
@pytest.mark.parametrize("scheme", [Scheme.SERVER, Scheme.TREE])
def test_everybody_is_in_each_tree_once(size, scheme):
    sizes = (5, 100, 33, 7, 1)
    found = plan(size, *sizes, scheme=scheme)
    covered = {unit: [0] * n for unit, n in enumerate(sizes)}
    for number, flow in enumerate(flows_of(found)):
        assert flow.index == number
        reached, edge = {flow.root}, [flow.root]
        while edge:
            rank = edge.pop()
            for child in flow.children(rank):
                assert flow.parent(child) == rank
                assert child not in reached
                reached.add(child)
                edge.append(child)
        assert reached == set(range(size))
        assert flow.parent(flow.root) is None
        for place in range(flow.start, flow.stop):
            covered[flow.send.unit][place] += 1
    assert all(set(counts) == {1} for counts in covered.values())


def test_roots_share_the_elements():
    elems = [0] * 4
    for flow in flows_of(plan(4, *[100] * 12, scheme=Scheme.TREE)):
        elems[flow.root] += flow.stop - flow.start
    assert elems == [300] * 4


@pytest.mark.parametrize("size", range(2, 40))
def test_no_other_arity_has_fewer_messages_in_a_row(size):
    def levels(k: int) -> int:
        reached, depth = 1, 0
        while reached < size:
            depth += 1
            reached = sum(k**level for level in range(depth + 1))
        return depth

    assert all(tree_levels(size, k) == levels(k) for k in range(1, size))
    best = tree_arity(size)
    assert best * levels(best) == min(k * levels(k) for k in range(1, size))


def test_small_units_go_by_trees_and_large_ones_by_shards():
    chosen = plan(8, 1000, 8_000_000)
    assert [unit.scheme for unit in chosen.units] == [Scheme.TREE, Scheme.SERVER]


def test_plans_remember_their_pattern():
    chosen = plan(4, 10, 20)
    assert CommPlan.from_json(chosen.to_json()) == chosen
    assert "notified puts (gpi)" in chosen.table()
    older = json.loads(make_plan(profile(10), Cluster((1, 1), 1e9)).to_json())
    del older["pattern"]
    assert CommPlan.from_json(json.dumps(older)).pattern == "collective"


def test_what_the_pattern_has_not():
    with pytest.raises(UsageError, match="'gpi' has the schemes server, factors, tree, not ring: choose one of them"):
        PlanRequest(pattern="gpi", scheme=Scheme.RING)
    with pytest.raises(UsageError, match="not tree"):
        PlanRequest(overrides=parse_overrides("fc=tree"))
    with pytest.raises(UsageError, match="'gpi' moves gradients as they are, got wire 'bf16'"):
        PlanRequest(pattern="gpi", wire="bf16")
    with pytest.raises(UsageError, match="a pattern is one of collective, gpi, got 'mpi'"):
        PlanRequest(pattern="mpi")
    data = json.loads(make_plan(profile(10), Cluster((1, 1), 1e9)).to_json()) | {"pattern": "gpi"}
    with pytest.raises(PlanError, match="goes by RING, which the pattern 'gpi' has not"):
        CommPlan.from_json(json.dumps(data))
