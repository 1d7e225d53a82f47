"""Curves: what a run has told about itself, as lines over iterations and seconds, grouped into charts.

    Loss            every output called a loss, and the solver's smoothed one; of training and of tests
    Accuracy        outputs called accuracy, precision, recall, mAP, top-k, …
    <others>        one chart for all the rest
    Learning rate, Throughput, Waiting      of training

A line has at most `MOST_POINTS`: of each of as many stretches the lowest and the highest value are kept, so that no
spike is lost. What was no finite number is a gap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from poseidon.record import Metric, Run

MOST_POINTS = 1500
_LOSS = re.compile(r"loss|error|cost", re.I)
_SCORE = re.compile(r"acc|prec|recall|map\b|top[-_]?\d|f1|iou", re.I)


@dataclass(frozen=True, slots=True)
class Point:
    """A value (None: a gap) at an iteration, so many seconds after the start."""

    iteration: int
    seconds: float
    value: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """A line. `dashed`: of a test."""

    name: str
    points: tuple[Point, ...]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """`unit` stands behind values; `from_zero`: the axis begins at 0; `logs`: it may be shown logarithmically."""

    key: str
    title: str
    series: tuple[Series, ...]
    unit: str = ""
    from_zero: bool = False
    logs: bool = False


def charts_of(run: Run) -> tuple[Chart, ...]:
    """All charts that have something to show."""
    losses: list[str] = []
    scores: list[str] = []
    others: list[str] = []
    for name in _output_names(run.metrics):
        place = losses if _LOSS.search(name) else scores if _SCORE.search(name) else others
        place.append(name)
    charts = [
        Chart("loss", "Loss", (*_smoothed(run, losses), *_outputs(run, losses)), logs=True),
        Chart("accuracy", "Accuracy", _outputs(run, scores)),
        Chart("outputs", "Other outputs", _outputs(run, others)),
        Chart("rate", "Learning rate", _one("learning rate", run.training, lambda metric: metric.lr), logs=True),
    ]
    return tuple(chart for chart in charts if chart.series)


def speed_charts(run: Run) -> tuple[Chart, ...]:
    """How fast, and how much of it was waiting."""
    charts = [
        Chart(
            "throughput",
            "Throughput",
            _one("samples per second", run.training, lambda metric: metric.samples_per_second),
            unit="/s",
            from_zero=True,
        ),
        Chart("waiting", "Waiting", _waiting(run), unit="%", from_zero=True),
    ]
    return tuple(chart for chart in charts if chart.series)


def _output_names(metrics: Iterable[Metric]) -> list[str]:
    return list(dict.fromkeys(name for metric in metrics for name in metric.outputs))


def _smoothed(run: Run, losses: Sequence[str]) -> tuple[Series, ...]:
    """The solver's own loss, where it is not one of the outputs anyway."""
    differs = any(
        metric.loss is not None and metric.loss not in [metric.outputs.get(name) for name in losses]
        for metric in run.training
    )
    return _one("loss, smoothed", run.training, lambda metric: metric.loss) if differs else ()


def _outputs(run: Run, names: Sequence[str]) -> tuple[Series, ...]:
    found: list[Series] = []
    net_indices = sorted({metric.net_index for metric in run.tests})
    for name in names:
        found += _one(f"{name}, train", run.training, _output(name))
        for net in net_indices:
            tests = [metric for metric in run.tests if metric.net_index == net]
            label = f"{name}, test" if net_indices == [0] else f"{name}, test net {net}"
            found += _one(label, tests, _output(name), dashed=True)
    return tuple(found)


def _output(name: str) -> Callable[[Metric], float | None]:
    return lambda metric: metric.outputs.get(name)


def _waiting(run: Run) -> tuple[Series, ...]:
    def share(metric: Metric) -> float | None:
        waits = [worker.wait_s for worker in metric.workers]
        if not waits or not metric.iteration_seconds:
            return None
        return 100 * sum(waits) / len(waits) / metric.iteration_seconds

    return _one("waiting for the network, mean of workers", run.training, share)


def _one(
    name: str,
    metrics: Sequence[Metric],
    value: Callable[[Metric], float | None],
    *,
    dashed: bool = False,
) -> tuple[Series, ...]:
    """The series, or none if it has no value at all."""
    points = [Point(metric.iteration, metric.seconds, value(metric)) for metric in metrics]
    if all(point.value is None for point in points):
        return ()
    return (Series(name, thinned(points), dashed),)


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """At most `most` of the points: the first, the last, and extremes of every stretch between them."""
    if len(points) <= most:
        return tuple(points)
    stretches = max(1, (most - 2) // 2)
    inner = points[1:-1]
    kept = [points[0]]
    for index in range(stretches):
        stretch = inner[index * len(inner) // stretches : (index + 1) * len(inner) // stretches]
        known = [point for point in stretch if point.value is not None]
        if known:
            ends = {id(point): point for point in (min(known, key=_value), max(known, key=_value))}
            kept += sorted(ends.values(), key=lambda point: point.iteration)
        elif stretch:
            kept.append(stretch[0])
    return (*kept, points[-1])


def _value(point: Point) -> float:
    assert point.value is not None
    return point.value
