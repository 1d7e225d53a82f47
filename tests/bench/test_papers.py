"""The papers' page: each system's iteration against closed forms, and the committed page against its points."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import papers, papers_page
from bench.papers import GOALS, SYSTEMS, Cell, Point, append, cells_of, cluster_of, read_points
from poseidon.plan import PAYLOAD_SHARE, FactorShape, LayerProfile, NetProfile, ParamProfile, Scheme

CELL = Cell("alexnet", 10, 4, "plan")
RATE = 10e9 * PAYLOAD_SHARE / 8


def two_layers(mb: float) -> NetProfile:
    """Two dense layers of so many MB each: 100 ms forward, 200 ms backward, half of it each."""
    params = tuple(ParamProfile(f"conv{i}/0", (int(mb * 1e6 / 4),)) for i in (1, 2))
    layers = tuple(LayerProfile(f"conv{i}", 0.05, 0.1, (f"conv{i}/0",)) for i in (1, 2))
    return NetProfile(layers, params)


def iteration_s(system: str, profile: NetProfile) -> float:
    return SYSTEMS[system](profile, cluster_of(CELL))[0]


def ring_s(mb: float) -> float:
    """2·B·3/4 over the wire."""
    return 2 * mb * 1e6 * 0.75 / RATE


def test_at_the_end_nothing_is_hidden():
    found = iteration_s("server at the end", two_layers(80))
    wire_s = ring_s(160)
    assert 0.3 + wire_s < found < 0.3 + wire_s + 0.01


def test_wait_free_hides_the_second_layer_behind_backward():
    """40 MB take 51 ms: the second layer's are over when the first's backward is; the first's are not hidden."""
    found = iteration_s("wait-free", two_layers(40))
    assert 0.3 + ring_s(40) < found < 0.3 + ring_s(40) + 0.005


def test_ours_hide_the_second_layer_behind_forward_as_well():
    """160 MB take 204 ms each. Only the first layer's stand in the way if they go first; then the second's go on beside
    the first layer's forward pass."""
    wire_s = ring_s(160)
    barrier, ours = iteration_s("wait-free", two_layers(160)), iteration_s("ring", two_layers(160))
    # All is sent 100 ms + two rings after backward began; forward of 100 ms, or the second layer's 50 ms, comes after.
    assert barrier == pytest.approx(0.1 + 2 * wire_s + 0.1, abs=0.01)
    assert ours == pytest.approx(0.1 + 2 * wire_s + 0.05, abs=0.02)
    assert ours < barrier


@pytest.mark.parametrize("name", ["alexnet", "vgg19_22k"])
def test_every_goal_is_among_the_cells_with_its_explanation(name):
    cells = set(cells_of(name))
    for goal in GOALS:
        if goal.net == name:
            assert {Cell(name, goal.gbit, goal.nodes, system) for system in (*SYSTEMS, *papers.EXPLAINED)} <= cells
    assert Cell(name, 40, 1024, "plan") in cells
    assert Cell(name, 1, 1024, "plan") not in cells


def test_points_survive_their_file(tmp_path):
    path = tmp_path / "points.csv"
    assert read_points(path) == {}
    points = [Point("alexnet", 10, n, "plan", 256, 1.2, 1.25, 303.5, "RING 4%, FACTORS 96%") for n in (2, 4)]
    for point in points:
        append(point, path)
    assert list(read_points(path).values()) == points
    assert points[1].speed_up == pytest.approx(4 * 1.2 / 1.25)


def test_committed_page_is_what_its_points_say():
    assert papers_page.PAGE.read_text(encoding="utf-8") == papers_page.page_text(read_points())


def test_committed_points_are_all_there():
    known = read_points()
    assert not [cell for name in papers.SUBJECTS for cell in cells_of(name) if cell not in known]


def test_page_claims_nothing_without_points():
    with pytest.raises(SystemExit, match="12 goals have no point yet"):
        papers_page.page_text({})


def test_goals_missed_by_either_simulation_are_named():
    points = dict(read_points())
    goal = GOALS[0]
    for system in ("plan", papers.PLAYED):
        cell = Cell(goal.net, goal.gbit, goal.nodes, system)
        slow = {**points, cell: replace(points[cell], iteration_s=2.4)}
        assert papers_page.reached(slow, goal) == pytest.approx(8 * 1.2 / 2.4)
        text = papers_page.page_text(slow)
        assert "AlexNet on 8 nodes at 40 Gbit/s reaches 4.00, 51.9% of its goal" in text
        assert " missed |" in text


def test_schemes_asked_for_are_the_ones_planned():
    """A forced system has no other scheme where there is a choice."""
    weight = ParamProfile("fc/0", (64, 64), factors=FactorShape(8, 64, 64))
    profile = NetProfile((LayerProfile("fc", 0.1, 0.2, ("fc/0",)),), (weight,))
    for system, scheme in (("ring", Scheme.RING), ("server", Scheme.SERVER), ("factors", Scheme.FACTORS)):
        _, plan = SYSTEMS[system](profile, cluster_of(CELL))
        assert {unit.scheme for unit in plan.units} == {scheme}
