"""What a report says, against figures worked out by hand, and brute force where there are many."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from poseidon.plan import PlanRequest, make_plan
from poseidon.record import Event, Facts, Metric, Run, Trace, WorkerFigures
from poseidon.report.contents import ReportOptions, contents_of
from poseidon.report.curves import Point, charts_of, speed_charts, thinned
from poseidon.report.speed import Speed, WorkerMeans, speed_of
from poseidon.report.tiles import tiles_of
from poseidon.report.timeline import MOST_RANKS, Shown, iterations_shown, lanes_of, timeline_of
from poseidon.report.traffic import traffic_of
from poseidon.report.words import bytes_text, figure, percent, seconds_text, when
from tests.report.runs import CLUSTER, profile, trace, write_run

FACTS = Facts("run", ("poseidon",), 0.0, cluster={"workers": 2})


def train(iteration, **told):
    return Metric("train", iteration, iteration * 0.5, **told)


# -- speed ------------------------------------------------------------------------------------------------------------
def test_speed_counts_iterations_and_leaves_the_first_display_out():
    def workers(compute_s, wait_s):
        return (WorkerFigures(0, compute_s, wait_s, 100.0, 50.0), WorkerFigures(1, compute_s, wait_s, 300.0, 50.0))

    run = Run(
        FACTS,
        (
            train(0, iteration_seconds=50.0, samples_per_second=1.0, workers=workers(40.0, 10.0)),
            train(10, iteration_seconds=1.0, samples_per_second=100.0, workers=workers(0.8, 0.1)),
            train(40, iteration_seconds=2.0, samples_per_second=50.0, workers=workers(1.0, 0.5)),
        ),
    )
    speed = speed_of(run)
    assert speed.iteration_s == pytest.approx((10 * 1 + 30 * 2) / 40)
    assert speed.samples_per_second == pytest.approx(40 / (10 / 100 + 30 / 50))
    compute_s = (10 * 0.8 + 30 * 1.0) / 40
    assert speed.speedup == pytest.approx(2 * compute_s / speed.iteration_s)
    assert speed.workers[1].sent_bytes == 300
    assert speed.workers[0].other_s == pytest.approx(speed.iteration_s - compute_s - (10 * 0.1 + 30 * 0.5) / 40)
    assert speed.sent_bps() == pytest.approx(300 / speed.iteration_s)


def test_a_run_that_tells_nothing_has_no_speed():
    speed = speed_of(Run(FACTS, (train(0, outputs={"loss": 1.0}),)))
    assert (speed.iteration_s, speed.samples_per_second, speed.speedup, speed.sent_bps()) == (None,) * 4


# -- curves -----------------------------------------------------------------------------------------------------------
def test_outputs_are_sorted_into_charts():
    test = Metric("test", 0, 0.0, {"accuracy": 0.5, "loss": 1.0, "iou": 0.1, "heat": 3.0})
    second = Metric("test", 0, 0.0, {"accuracy": 0.25}, net_index=1)
    run = Run(FACTS, (train(0, outputs={"loss": 1.5, "loss_aux": None}, loss=1.25, lr=0.1), test, second))
    found = {chart.key: [(series.name, series.dashed) for series in chart.series] for chart in charts_of(run)}
    assert found == {
        "loss": [("loss, smoothed", False), ("loss, train", False), ("loss, test net 0", True)],
        "accuracy": [("accuracy, test net 0", True), ("accuracy, test net 1", True), ("iou, test net 0", True)],
        "outputs": [("heat, test net 0", True)],
        "rate": [("learning rate", False)],
    }
    assert speed_charts(run) == ()


def test_thinning_keeps_ends_and_extremes():
    draw = random.Random(3)
    points = [Point(i, i * 0.1, draw.gauss(0, 1)) for i in range(10_000)]
    points[777] = Point(777, 77.7, 99.0)
    points[5000] = Point(5000, 500.0, None)
    kept = thinned(points, 300)
    assert len(kept) <= 300
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert points[777] in kept
    assert min(p.value for p in points if p.value is not None) in {p.value for p in kept}
    assert [p.iteration for p in kept] == sorted({p.iteration for p in kept})
    assert thinned(points[:200], 300) == tuple(points[:200])


# -- timeline ---------------------------------------------------------------------------------------------------------
def test_lanes_never_overlap_and_are_as_few_as_possible():
    draw = random.Random(5)
    for _ in range(100):
        spans = sorted((s := draw.random() * 10, s + draw.random() * 3) for _ in range(draw.randrange(1, 30)))
        lanes = lanes_of(spans)
        for (left, a), (right, b) in itertools.combinations(list(zip(spans, lanes, strict=True)), 2):
            assert a != b or left[1] <= right[0] or right[1] <= left[0]
        at_once = max(sum(start <= at < end for start, end in spans) for at, _ in spans)
        assert max(lanes) + 1 == at_once


def trace_of(rank, iterations):
    events = [
        event
        for i in iterations
        for event in (
            Event("iteration", "", i, i * 1.0, 0.9),
            Event("forward", "a", i, i * 1.0, 0.25),
            Event("move", "a/0", i, i + 0.5, 0.25, 1000, 0, 2),
            Event("ready", "a/0", i, i + 0.5),
        )
    ]
    return Trace(rank, "h", 0.0, 1e-5 * rank, 0.0, tuple(events))


def test_iterations_that_all_ranks_have_are_shown():
    run = Run(FACTS, (), (trace_of(0, range(10, 30)), trace_of(1, range(12, 28))))
    assert iterations_shown(run, Shown()) == [23, 24, 25, 26, 27]
    assert iterations_shown(run, Shown(13, 15)) == [13, 14]
    assert iterations_shown(run, Shown(26)) == [26, 27]
    assert iterations_shown(run, Shown(100, 120)) == []
    assert timeline_of(run, Shown(100, 120)) is None
    assert timeline_of(Run(FACTS), Shown()) is None


def test_the_timeline_as_the_page_gets_it():
    found = timeline_of(Run(FACTS, (), (trace_of(0, [10]), trace_of(1, [10]))), Shown())
    assert (found["iterations"], found["span"], found["uncertainty"], found["left_out"]) == ([10], 900_000.0, 10.0, 0)
    assert found["marks"] == [[0, 10, 0.0, 900_000.0], [1, 10, 0.0, 900_000.0]]
    compute, network, *_ = found["tracks"]
    name = found["names"].index
    kind = found["kinds"].index
    assert compute["events"] == [[kind("forward"), name("a"), 10, 0.0, 250_000.0, 0, -1, -1, -1]]
    assert network["events"] == [
        [kind("move"), name("a/0"), 10, 500_000.0, 250_000.0, 0, 1000, 0, 2],
        [kind("ready"), name("a/0"), 10, 500_000.0, -1, 0, -1, -1, -1],
    ]
    many = Run(FACTS, (), tuple(trace_of(rank, [10]) for rank in range(MOST_RANKS + 3)))
    assert timeline_of(many, Shown())["left_out"] == 3


def test_the_wire_is_the_busiest_nodes():
    workers = tuple(WorkerMeans(rank, 0.1, 0.0, 0.0, sent, 0.0) for rank, sent in enumerate((10.0, 20.0, 25.0, 0.0)))
    speed = Speed(4, 0.5, None, workers)
    assert speed.sent_bps([(0, 1), (2, 3)]) == 60
    assert speed.sent_bps() == 50
    assert speed.sent_bps([(0, 1)]) == 60


# -- traffic ----------------------------------------------------------------------------------------------------------
def test_traffic_is_the_busiest_nodes():
    plan = make_plan(profile(), CLUSTER, PlanRequest())
    unit = next(unit for unit in plan.units if unit.bytes_sent)

    def moved(rank, *counts):
        events = tuple(
            Event("move", "u", i, float(i), 0.1, count, unit.index, 0)
            for i, pieces in enumerate(counts)
            for count in pieces
        )
        return Trace(rank, "h", 0, 0, 0, events)

    traces = [moved(0, (100, 50), (100, 50)), moved(1, (300,), (100,))]
    found = {one.index: one for one in traffic_of(plan, traces)}
    assert found[unit.index].measured_bytes == 200
    assert found[unit.index].ratio == 200 / unit.bytes_sent
    others = [one for one in found.values() if one.index != unit.index]
    assert others
    assert all(one.measured_bytes is None and one.ratio is None for one in others)


def test_what_was_sent_as_planned_has_ratio_one(tmp_path):
    plan = make_plan(profile(), CLUSTER, PlanRequest())
    counts = {unit.index: sum(send.unit == unit.index for send in plan.order) for unit in plan.units}
    found = traffic_of(plan, [trace(0, plan)])
    assert all(one.ratio == pytest.approx(counts[one.index], rel=1e-6) for one in found)


# -- all together -----------------------------------------------------------------------------------------------------
def test_what_cannot_be_read_is_told_and_the_rest_is_there(tmp_path):
    run = write_run(tmp_path)
    broken = Run(Facts("run", (), 0.0, net="layer {", plan={"units": 3}), run.metrics, run.traces)
    found = contents_of(broken, ReportOptions(Shown()))
    assert found.plan is None
    assert found.source is None
    assert "The plan cannot be read" in found.problem
    assert "The net cannot be read" in found.problem
    assert found.curves
    assert found.overlaps


def test_tiles_say_what_the_run_has_told(tmp_path):
    run = write_run(tmp_path)
    tiles = {tile.name: tile for tile in tiles_of(contents_of(run, ReportOptions(Shown())))}
    assert tiles["Accuracy, test"].value == f"{100 * (1 - 0.9 * math.exp(-1000 / 180)):.2f} %"
    assert tiles["Iteration"].value == "25"
    assert tiles["Speed-up"].value == "3.2 ×"  # four workers compute 20 of 25 ms
    assert "estimate" in tiles["Speed-up"].note
    assert list(tiles_of(contents_of(Run(FACTS), ReportOptions(Shown())))) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (figure(0.012345), "0.0123"), (figure(1234.5), "1234"), (figure(0), "0"), (figure(3.0), "3"),
        (figure(12.34), "12.3"), (figure(1e-7), "1.00e-07"), (figure(0.00999999), "0.01"),
        (seconds_text(4.2e-5), "42 µs"), (seconds_text(0.00123), "1.23 ms"), (seconds_text(7500), "2 h 5 min"),
        (seconds_text(200), "3 min 20 s"), (seconds_text(0), "0 s"), (seconds_text(119), "119 s"),
        (bytes_text(999), "999 B"), (bytes_text(1_230_000), "1.23 MB"), (bytes_text(2.5e9), "2.5 GB"),
        (percent(0.997), "99.7 %"), (percent(1), "100 %"), (percent(0.93), "93 %"), (percent(0.004), "0.4 %"),
        (when(0), "1970-01-01 00:00 UTC"), (when(1e30), ""),
    ],
)  # fmt: skip
def test_figures_as_words(text, expected):
    assert text == expected
