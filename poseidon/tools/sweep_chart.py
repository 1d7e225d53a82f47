"""A sweep as a picture: images/s of every value, a panel per axis, beside what would be linear. matplotlib draws."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

from poseidon.errors import UsageError
from poseidon.plan.sweep import WORKERS, Point
from poseidon.spec.files import write_atomically


def draw_sweep(points: Sequence[Point], path: str) -> None:
    """Writes the chart, as SVG, PNG or PDF by the ending of the name."""
    axes_of = {axis: [p for p in points if p.axis == axis] for axis in dict.fromkeys(p.axis for p in points)}
    figure = _figure(len(axes_of))
    for panel, (axis, group) in zip(figure.subplots(1, len(axes_of), squeeze=False)[0], axes_of.items(), strict=True):
        _draw_axis(panel, axis, group)
    figure.tight_layout()
    image = io.BytesIO()
    try:
        figure.savefig(image, format=os.path.splitext(path)[1][1:].lower() or "svg", dpi=120)
    except ValueError as problem:  # a format it does not know
        raise UsageError(f"{path}: {problem}; give a name that ends in .svg or .png") from None
    write_atomically(image.getvalue(), path)


def _draw_axis(panel: Any, axis: str, group: Sequence[Point]) -> None:
    places = range(len(group))
    panel.plot(places, [point.images_per_s for point in group], marker="o", linewidth=1, label="predicted")
    limit = [point.num_workers * point.images / point.compute_s for point in group]
    panel.plot(places, limit, linestyle="--", linewidth=0.75, color="grey", label="without communication")
    for place, point in zip(places, group, strict=True):
        if point.is_given:
            panel.axvline(place, color="grey", linewidth=0.5)
        told = f"{point.efficiency:.0%}"
        panel.annotate(told, (place, point.images_per_s), (0, -12), textcoords="offset points", fontsize=7, ha="center")
    panel.set_xticks(places, [point.value for point in group], rotation=0 if axis == WORKERS else 30, fontsize=7)
    panel.set(xlabel=axis, ylabel="images/s", ylim=(0, 1.1 * max(limit)))
    panel.legend(fontsize=7)


def _figure(num_panels: int) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError('charts need the package matplotlib: pip install "poseidon-dl[plot]"') from None
    return Figure(figsize=(4.5 * num_panels, 3.6))
