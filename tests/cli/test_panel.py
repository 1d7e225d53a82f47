"""What is below the progress bar: curves, workers and the wire, at several widths; text known beforehand."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from poseidon.cli.panel import Panel, short
from poseidon.cli.sparkline import Curve, sparkline
from poseidon.plan import Cluster, CommPlan, Scheme, Send, Unit
from poseidon.run.view import JobView
from poseidon.transport.vitals import Vitals


def unit_of(index, scheme, num_elems):
    return Unit(index, (f"layer{index}/0",), ((num_elems,),), num_elems, scheme, 0, None, 0, 0.0, "")


PLAN = CommPlan(
    (unit_of(0, Scheme.RING, 25), unit_of(1, Scheme.FACTORS, 75)),
    (Send(0, 0, 25), Send(1, 0, 75)),
    False,
    Cluster((1, 1), bandwidth_bps=8e8),
    "fp32",
    4,
    1.0,
    1.0,
)


def drawn(panel, columns=80, rows=24, encoding="utf-8"):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=columns, height=rows, force_terminal=True, color_system=None)
    console.print(panel)
    stream.seek(0)
    return [line.rstrip() for line in stream.read().splitlines() if line.strip()]


def view_of(waits, sent=lambda: 0, bandwidth=1e8):
    """All workers are on one node; `sent` is what has left it."""

    def vitals():
        counts = [sent(), *[0] * (len(waits) - 1)]
        figures = [{"wait_share": share, "sent_bytes": count} for share, count in zip(waits, counts, strict=True)]
        return {rank: Vitals(figures=found) for rank, found in enumerate(figures)}

    return JobView(PLAN, vitals, (0,) * len(waits), bandwidth)


def test_the_busiest_node_is_what_counts():
    sent = {0: 10.0, 1: 20.0, 2: 25.0, 3: 0.0}
    vitals = {rank: Vitals(figures={"sent_bytes": count}) for rank, count in sent.items()}
    assert JobView(PLAN, lambda: vitals, (0, 0, 1, 1), 1e8).sent_bytes() == 30
    assert JobView(PLAN, lambda: {2: vitals[2]}, (0, 0, 1, 1), 1e8).sent_bytes() == 25
    assert JobView(PLAN, dict, (0, 0, 1, 1), 1e8).sent_bytes() == 0


def panel_of(**fields):
    panel = Panel(**fields)
    for value in (8.0, 4.0, 2.0, 1.0):
        panel.loss.add(value)
    return panel


# -- curves -----------------------------------------------------------------------------------------------------------
def test_a_curve_in_a_line():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 2, 4, 6, 5, 5, 0, 0], 4) == "▂██▁"  # means 1, 5, 5, 0 of neighbours
    assert sparkline([3, 3, 3], 8) == "▁▁▁"
    assert sparkline([1, float("nan"), 2], 8) == "▁x█"
    assert sparkline([float("inf")], 8) == "x"
    assert sparkline([-1.7e308, 1.7e308], 8) == "▁▁"
    assert sparkline([], 8) == ""
    assert sparkline([0, 7], 8, ascii_only=True) == "_#"


def test_a_long_curve_keeps_its_shape():
    curve = Curve()
    for step in range(10_000):
        curve.add(step)
    assert curve.last == 9999
    assert 256 <= len(curve.values) < 512
    assert sparkline(curve.values, 8) == "▁▂▃▄▅▆▇█"


def test_numbers_have_three_digits():
    assert [short(value) for value in (7553.2, 104.6, 12.345, 0.5)] == ["7,550", "105", "12.3", "0.5"]


# -- lines ------------------------------------------------------------------------------------------------------------
def test_one_worker_has_curves_only():
    panel = panel_of(score_name="accuracy", unit_name="images", per_iteration=50, iterations_per_s=151.0)
    for value in (0.1, 0.9):
        panel.score.add(value)
    assert drawn(panel) == ["loss      █▄▂▁ 1   accuracy ▁█ 0.9   7,550 images/s"]


def test_workers_and_the_wire():
    """Bars of 44 letters: 80 columns less label, text and two more. 30 MB in 2 s of a link
    of 100 MB/s: 15% of 28 letters."""
    so_far = {"seconds": 0.0, "sent": 0}
    panel = panel_of(view=view_of((0.25, 0.5), lambda: so_far["sent"]), now=lambda: so_far["seconds"])
    drawn(panel)
    so_far.update(seconds=2.0, sent=30_000_000)
    _, first, second, wire = drawn(panel)
    assert first == f"rank 0    {'█' * 33}{'▒' * 11}   75% compute, 25% wait"
    assert second == f"rank 1    {'█' * 22}{'▒' * 22}   50% compute, 50% wait"
    assert wire.startswith("wire      ████░")
    assert wire.endswith("░  15 of 100 MB/s   factors 75%, ring 25%")


def test_the_speed_of_the_wire_is_that_of_the_last_seconds():
    seconds = [0.0]
    panel = panel_of(view=view_of((0.0,), lambda: 80_000_000 if seconds[0] else 0), now=lambda: seconds[0])
    speeds = []
    for seconds[0] in (0.0, 1.0, 2.0, 3.0, 4.0):
        speeds.append(drawn(panel)[-1].split("░  ")[-1].split(" of ")[0])
    assert speeds == ["0", "80", "40", "0", "0"]


def test_workers_of_one_host_have_no_wire():
    panel = panel_of(view=view_of((0.0, 0.0), bandwidth=None))
    assert drawn(panel)[-1] == "exchange  in the memory all workers share   factors 75%, ring 25%"


def test_of_many_workers_those_are_shown_that_others_wait_for():
    panel = panel_of(view=view_of([share / 100 for share in range(40, 0, -1)]))
    lines = drawn(panel)
    assert [line.split()[1] for line in lines if line.startswith("rank")] == [str(rank) for rank in range(32, 40)]
    assert "others    32 workers that wait longer: 9% to 40% wait" in lines


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_every_line_fits(columns):
    panel = panel_of(score_name="accuracy", per_iteration=50, iterations_per_s=151.0, view=view_of((0.1, 1.5, -1.0)))
    for step in range(600):
        panel.loss.add(1 / (step + 1))
        panel.score.add(step)
    lines = drawn(panel, columns)
    assert len(lines) == 5
    assert max(map(len, lines)) <= columns
    assert all(len(line) > columns / 2 for line in lines)


def test_small_terminals_have_the_bar_alone():
    panel = panel_of(view=view_of((0.1,)))
    assert drawn(panel, columns=59) == []
    assert drawn(panel, rows=11) == []
    assert drawn(Panel()) == []


def test_terminals_without_unicode_get_letters():
    panel = panel_of(view=view_of((0.5,)))
    lines = drawn(panel, encoding="ascii")
    assert lines[0] == "loss      #=._ 1"
    assert lines[1].startswith("rank 0    ####")
