"""A plan for people: what it is made for, one line per unit, what it adds up to. At most 100 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poseidon.plan.commplan import CommPlan, Unit

HEADINGS = ("unit", "shape", "dense MB", "factors MB", "scheme", "sent MB", "ms")
_RIGHT = ("dense MB", "factors MB", "sent MB", "ms")
_MOST_NAME, _MOST_SHAPE = 26, 17


@dataclass(frozen=True, slots=True)
class PlanTable:
    """The parts of the text: lines above, cells (one row per unit, one cell per heading), lines below."""

    above: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    below: tuple[str, ...]


def plan_table(plan: CommPlan) -> PlanTable:
    """The plan's text in parts, for whoever lays it out."""
    above = (
        f"cluster   {plan.cluster.describe()}",
        f"wire      {plan.wire}, {_on_their_way(plan)}",
    )
    return PlanTable(above, tuple(_row(unit) for unit in plan.units), _below(plan))


def _on_their_way(plan: CommPlan) -> str:
    if plan.pattern == "gpi":
        return "by notified puts (gpi): each as soon as its gradient is there"
    return "one send at a time" if plan.in_flight == 1 else f"{plan.in_flight} sends on their way at most"


def plan_text(plan: CommPlan) -> str:
    """The plan as aligned text."""
    table = plan_table(plan)
    lines = _aligned([HEADINGS, *table.rows])
    rule = "-" * max(map(len, lines))
    return "\n".join([*table.above, "", lines[0], rule, *lines[1:], rule, *table.below])


def is_right_aligned(heading: str) -> bool:
    return heading in _RIGHT


def _row(unit: Unit) -> tuple[str, ...]:
    return (
        _name(unit.params),
        _shortened(" x ".join(map(str, unit.shapes[0])) if len(unit.params) == 1 else _sizes(unit), _MOST_SHAPE),
        megabytes(unit.dense_bytes),
        "-" if unit.factor_bytes is None else megabytes(unit.factor_bytes),
        unit.scheme.name,
        megabytes(unit.bytes_sent),
        _milliseconds(unit.seconds),
    )


def _sizes(unit: Unit) -> str:
    """The shape of what dominates, if the rest rides on it, else the sum."""
    if unit.scheme.is_dense and len(unit.params) > 2:
        return f"{unit.num_elems} in all"
    return " x ".join(map(str, unit.shapes[0]))


def _name(params: Sequence[str]) -> str:
    if len(params) == 1:
        return _shortened(params[0], _MOST_NAME)
    ending = f" +{len(params) - 1}"
    return _shortened(params[0], _MOST_NAME - len(ending)) + ending


def _below(plan: CommPlan) -> tuple[str, ...]:
    waited_s = plan.iteration_s - plan.compute_s
    lines = [
        f"network   {megabytes(plan.bytes_sent)} MB sent per node and iteration in {len(plan.order)} sends",
        f"iteration {plan.iteration_s * 1e3:.1f} ms predicted = {plan.compute_s * 1e3:.1f} ms compute"
        f" + {waited_s * 1e3:.1f} ms rebuilding, updating and waiting",
    ]
    if plan.barrier:
        lines.append("barrier   every update waits for all gradients (clip_gradients)")
    lines += [_shortened(f"why       {unit.params[0]}: {unit.reason}", 100) for unit in plan.units if unit.factor_bytes]
    return tuple(lines)


def megabytes(num_bytes: float) -> str:
    """Millions of bytes in about three digits."""
    value = num_bytes / 1e6
    return f"{value:.0f}" if value >= 100 or value == 0 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds < 10 else f"{seconds * 1e3:.0f}"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return [
        "  ".join(
            cell.rjust(width) if is_right_aligned(heading) else cell.ljust(width)
            for cell, width, heading in zip(row, widths, HEADINGS, strict=True)
        ).rstrip()
        for row in rows
    ]
