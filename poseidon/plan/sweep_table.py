"""A sweep for people: one block of lines per axis, with a bar for images/s; and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from poseidon.plan.commplan import Scheme
from poseidon.plan.sweep import Point
from poseidon.plan.table import megabytes

HEADINGS = ("", "iteration", "images/s", "× now", "speed-up", "efficiency", "MB/node", "schemes")
_BAR = 12
_PARTS = " ▏▎▍▌▋▊▉█"


def sweep_text(points: Sequence[Point]) -> str:
    """All axes, one block each; the line of what is given now is marked with ›."""
    blocks = [_block(list(group)) for group in _by_axis(points)]
    return "\n\n".join(blocks)


def _by_axis(points: Sequence[Point]) -> Iterable[list[Point]]:
    for axis in dict.fromkeys(point.axis for point in points):
        yield [point for point in points if point.axis == axis]


def _block(points: list[Point]) -> str:
    (now,) = (point for point in points if point.is_given)
    most = max(point.images_per_s for point in points)
    rows = [(points[0].axis, *HEADINGS[1:]), *(_row(point, now, most) for point in points)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    marks = ["  ", *("› " if point.is_given else "  " for point in points)]
    bars = ["", *(_bar(point.images_per_s / most) for point in points)]
    width = max(map(len, lines))
    return "\n".join(
        f"{mark}{line.ljust(width)}  {bar}".rstrip() for mark, line, bar in zip(marks, lines, bars, strict=True)
    )


def _row(point: Point, now: Point, most: float) -> tuple[str, ...]:
    return (
        point.value,
        f"{point.iteration_s * 1e3:.1f} ms",
        f"{point.images_per_s:.0f}" if point.images_per_s >= 100 else f"{point.images_per_s:.3g}",
        f"{point.images_per_s / now.images_per_s:.2f}",
        f"{point.speed_up:.2f}",
        f"{point.efficiency:.0%}",
        megabytes(point.bytes_sent),
        schemes_text(point.schemes),
    )


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    return "█" * (eighths // 8) + _PARTS[eighths % 8].strip()


def schemes_text(schemes: Sequence[tuple[Scheme, float]]) -> str:
    """`FACTORS 91%, RING 9%`; a hundredth of a percent or less is not worth a word."""
    told = [f"{scheme.name} {share:.0%}" for scheme, share in schemes if share >= 0.005]
    return ", ".join(told) or "–"


def sweep_json(points: Sequence[Point]) -> str:
    """One object per point."""
    return json.dumps([_object(point) for point in points], indent=1)


def _object(point: Point) -> dict[str, object]:
    return {
        "axis": point.axis,
        "value": point.value,
        "is_given": point.is_given,
        "workers": point.num_workers,
        "bandwidth_bps": point.bandwidth_bps,
        "batch": point.batch,
        "compute_s": point.compute_s,
        "iteration_s": point.iteration_s,
        "images_per_s": point.images_per_s,
        "speed_up": point.speed_up,
        "efficiency": point.efficiency,
        "bytes_sent": point.bytes_sent,
        "schemes": {scheme.value: share for scheme, share in point.schemes},
    }
