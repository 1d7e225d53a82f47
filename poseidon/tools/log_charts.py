"""Charts of training logs, those of Caffe's plot_training_log:

    0  Test accuracy vs. Iters            1  Test accuracy vs. Seconds
    2  Test loss vs. Iters                3  Test loss vs. Seconds
    4  Train learning rate vs. Iters      5  Train learning rate vs. Seconds
    6  Train loss vs. Iters               7  Train loss vs. Seconds

One line per log, named after its file. matplotlib draws; it is installed on request.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poseidon.errors import DataError, UsageError
from poseidon.spec.files import write_atomically
from poseidon.tools.training_log import TrainingLog

# With more points than this, marks would hide the line.
_MOST_MARKS = 60


@dataclass(frozen=True, slots=True)
class Chart:
    """`points` and `value` name what is shown: a list of a TrainingLog, and an attribute of its points."""

    y: str
    x: str
    points: str
    value: str
    legend: str

    @property
    def title(self) -> str:
        return f"{self.y} vs. {self.x}"


_CURVES = (
    ("Test accuracy", "scores", "accuracy", "lower right"),
    ("Test loss", "scores", "loss", "upper right"),
    ("Train learning rate", "losses", "rate", "upper right"),
    ("Train loss", "losses", "loss", "upper right"),
)
CHARTS = tuple(
    Chart(name, x, points, value, legend) for name, points, value, legend in _CURVES for x in ("Iters", "Seconds")
)


def curve(chart: Chart, log: TrainingLog) -> tuple[list[float], list[float]]:
    """The points of a log's line: all x, all y."""
    points = [point for point in getattr(log, chart.points) if getattr(point, chart.value) is not None]
    if not points:
        raise DataError(f"{log.path}: has nothing to show as {chart.title!r}")
    at = "iteration" if chart.x == "Iters" else "seconds"
    return [getattr(point, at) for point in points], [getattr(point, chart.value) for point in points]


def draw_chart(chart: Chart, logs: Sequence[TrainingLog], path: str) -> None:
    """Writes the chart to a PNG file (or whatever else matplotlib can, by the ending of the name)."""
    curves = [(log.path, curve(chart, log)) for log in logs]
    figure = _figure()
    axes = figure.subplots()
    for name, (xs, ys) in curves:
        label = os.path.basename(name).removesuffix(".log")
        axes.plot(xs, ys, label=label, linewidth=0.75, marker="o" if len(xs) <= _MOST_MARKS else "", markersize=3)
    axes.legend(loc=chart.legend)
    axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
    image = io.BytesIO()
    try:
        figure.savefig(image, format=os.path.splitext(path)[1][1:].lower() or "png", dpi=120)
    except ValueError as problem:  # a format it does not know
        raise UsageError(f"{path}: {problem}; give a name that ends in .png") from None
    write_atomically(image.getvalue(), path)


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError('charts need the package matplotlib: pip install "poseidon-dl[plot]"') from None
    return Figure(figsize=(8, 6))
