"""docs/papers.md and its pictures, from the points of `bench/papers.py`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.papers import (
    FAST_GBIT,
    FOLDER,
    GOALS,
    JITTERY,
    MANY_NODES,
    NODES,
    PARTS,
    PLAYED,
    POOR,
    RATES_GBIT,
    SUBJECTS,
    SYSTEMS,
    UNOWNED,
    Cell,
    Goal,
    Point,
    read_points,
)

PAGE = FOLDER.parent / "papers.md"
PANELS_GBIT = (1, 10, 40)
Points = Mapping[Cell, Point]


@dataclass(frozen=True, slots=True)
class Published:
    """A curve from a paper: speed-ups by number of nodes."""

    label: str
    gbit: int
    speed_ups: Mapping[int, float]


_22K = (2, 4, 8, 16, 32)
PUBLISHED: dict[str, tuple[Published, ...]] = {
    "alexnet": tuple(Published("Poseidon 2015", gbit, {8: 4.5}) for gbit in FAST_GBIT),
    "googlenet": tuple(Published("Poseidon 2015", gbit, {8: 4.0}) for gbit in FAST_GBIT),
    "cifar10_quick": tuple(Published("Poseidon 2015", gbit, {8: 4.0}) for gbit in FAST_GBIT),
    "vgg19_22k": (
        Published("Poseidon 2017", 40, dict(zip(_22K, (1.96, 3.83, 7.63, 15.0, 29.5), strict=True))),
        Published("its wait-free part alone", 40, dict(zip(_22K, (1.78, 3.28, 6.12, 11.6, 21.4), strict=True))),
        Published("plain server", 40, dict(zip(_22K, (1.0, 1.47, 2.16, 2.8, 4.4), strict=True))),
        Published("Poseidon 2017", 10, {16: 15.5}),
    ),
    "inception_v3": (Published("Poseidon 2017", 40, {32: 31.5}),),
}


# -- text -------------------------------------------------------------------------------------------------------------
def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def speed_up(points: Points, cell: Cell) -> str:
    point = points.get(cell)
    return "" if point is None else f"{point.speed_up:.{1 if point.speed_up >= 99.95 else 2}f}"


def goals_text(points: Points) -> str:
    rows = [_goal_row(points, goal) for goal in GOALS]
    head = [
        "net",
        "nodes",
        "Gbit/s",
        "published",
        "goal",
        "planned",
        "played",
        "without owners",
        "2 % jitter",
        "poor network",
        "lost ms",
        "what binds",
    ]
    return table(head, rows)


def _goal_row(points: Points, goal: Goal) -> list[str]:
    cell = plan_cell(goal)
    point = points[cell]
    played = points[replace(cell, system=PLAYED)]
    mark = "" if reached(points, goal) >= goal.least else " missed"
    return [
        SUBJECTS[goal.net].title,
        str(goal.nodes),
        str(goal.gbit),
        f"{goal.published:g}",
        f"{goal.least:g}",
        f"{point.speed_up:.2f}",
        f"**{played.speed_up:.2f}**{mark}",
        *(speed_up(points, replace(cell, system=system)) for system in (UNOWNED, JITTERY, POOR)),
        f"{(point.iteration_s - point.compute_s) * 1e3:.2f} of {point.iteration_s * 1e3:.1f}",
        binding(points, cell),
    ]


def binding(points: Points, cell: Cell) -> str:
    """What would be gained if one thing cost nothing, the most first."""
    gains = {}
    for part in PARTS:
        other = points.get(Cell(cell.net, cell.gbit, cell.nodes, f"plan without {part}"))
        if other is not None:
            gains[part] = (points[cell].iteration_s - other.iteration_s) * 1e3
    told = [f"{part} {gain:.2f} ms" for part, gain in sorted(gains.items(), key=lambda item: -item[1]) if gain >= 0.005]
    return ", ".join(told) or "–"


def systems_text(points: Points, net: str, gbit: int) -> str:
    """One line per system, published curves below."""
    nodes = [*NODES[1:], *(MANY_NODES if gbit in FAST_GBIT else ())]
    rows = [[system, *(speed_up(points, Cell(net, gbit, number, system)) for number in nodes)] for system in SYSTEMS]
    for curve in PUBLISHED.get(net, ()):
        if curve.gbit == gbit:
            rows.append(
                [f"*{curve.label}*", *(f"*{curve.speed_ups[n]:g}*" if n in curve.speed_ups else "" for n in nodes)]
            )
    return table([f"{gbit} Gbit/s", *map(str, nodes)], rows)


def rates_text(points: Points, net: str) -> str:
    rows = []
    for gbit in RATES_GBIT:
        figures = (speed_up(points, Cell(net, gbit, number, "plan")) for number in NODES[1:])
        rows.append([f"{gbit} Gbit/s", *figures, _schemes(points, Cell(net, gbit, 32, "plan"))])
    return table(["plan", *map(str, NODES[1:]), "schemes on 32"], rows)


def _schemes(points: Points, cell: Cell) -> str:
    return points[cell].schemes if cell in points else ""


def subjects_text(points: Points) -> str:
    rows = []
    for net, subject in SUBJECTS.items():
        found = next((point for point in points.values() if point.net == net), None)
        if found is not None:
            rows.append([subject.title, str(found.batch), f"{found.compute_s * 1e3:.4g} ms", subject.basis])
    return table(["net", "batch per worker", "compute per iteration", "from"], rows)


INTRODUCTION = """\
# The papers' clusters, again

<!-- Written by `python -m bench.papers --page`. -->

Speed-ups over one worker that Poseidon's planner predicts for the nets and clusters of the papers it descends from,
beside what they published, and beyond their clusters to 1 024 nodes. Nothing here was measured on such clusters:
compute times are published ones of a single GPU, and communication is played by the planner's simulation
([how it is built](architecture.md)), which is held against emulated hosts with real TCP in
[performance.md](performance.md#training-on-emulated-hosts).

```
python -m bench.papers             # docs/papers/points.csv: every point of this page
python -m bench.papers --page      # this page and its pictures
```

Assumed: one worker per node; links full duplex, 94 % of whose rate is payload; 0.1 ms per message; no contention in the
switch; collectives that fill the link; matrix products that rebuild a gradient from factors at 6 TFLOP/s; updates
counted in the compute. The paper of 2015 says "Ethernet" and not at which rate: its points stand at 10 and 40 Gbit/s.

"""

SYSTEM_NOTES = """\
| system | |
|---|---|
| server at the end | dense gradients through servers on all workers, after the backward pass; forward waits for all |
| wait-free | the same bytes, each layer's as soon as backward has passed it; forward waits for all |
| ring, server | our runtime held to one scheme: forward waits layer by layer, large gradients in pieces |
| factors | the same with factors for every fully-connected layer (sufficient factor broadcasting) |
| plan | what Poseidon does: schemes, sizes and order planned together |
"""


GOAL_NOTES = """\
`lost` is what an iteration takes beyond its compute. What binds: how much shorter the planned
iteration would be if messages took no time (latency), links had no limit (wire), or rebuilding from factors were free.
They do not add up: without one, the plan is another.

Played: the same plan message by message, by the slower simulator (`poseidon/simulate`), on machines that are alike, and
on workers whose compute varies by 2 % from iteration to iteration: exact training waits for the slowest, by whatever
scheme. There a device does one thing at a time, so that an owner's update waits for the layer that is being computed,
and with it all who pull; the planner does not see that. `without owners` is the plan without the two schemes that
have them (SERVER, FACTOR_SERVER), played. A poor network: the planner's figure for links that give 0.7 of what they
should, and messages that take 0.5 ms."""


def trust_text(points: Points) -> str:
    """The simulated curves of the two systems that a paper has measured, beside its figures."""
    pairs = (("wait-free", "its wait-free part alone"), ("server at the end", "plain server"))
    nodes = _22K
    rows = []
    for system, label in pairs:
        (curve,) = (curve for curve in PUBLISHED["vgg19_22k"] if curve.label == label)
        rows.append([f"{system}, simulated", *(speed_up(points, Cell("vgg19_22k", 40, n, system)) for n in nodes)])
        rows.append([f"*{label}, measured*", *(f"*{curve.speed_ups[n]:g}*" for n in nodes)])
    head = ["VGG19-22K, 40 Gbit/s", *map(str, nodes)]
    return f"## How far to trust it\n\n{TRUST.strip()}\n\n{table(head, rows)}"


TRUST = """\
The simulation knows links, messages and compute, and nothing of what a system loses elsewhere: copies between memories,
processors that cannot fill a 40 Gbit/s link, busy servers, workers of unequal speed. So it flatters all systems,
ours as well. How much, two systems show that the paper of 2017 measured on its cluster, beside the same two simulated:
a published figure is a measurement, and one in the column `plan` is not. On emulated hosts of 1 Gbit/s iterations took
0.99 to 1.25 times what the plan had said.
"""


def page_text(points: Points) -> str:
    unknown = [goal for goal in GOALS if not {plan_cell(goal), replace(plan_cell(goal), system=PLAYED)} <= set(points)]
    if unknown:
        raise SystemExit(f"{len(unknown)} goals have no point yet: run `python -m bench.papers` first")
    missed = [goal for goal in GOALS if reached(points, goal) < goal.least]
    verdict = "All goals are met, in simulation." if not missed else _missed_text(points, missed)
    parts = [
        INTRODUCTION + subjects_text(points),
        SYSTEM_NOTES.strip(),
        "## Goals\n\n" + goals_text(points),
        verdict,
        GOAL_NOTES,
        trust_text(points),
    ]
    for net, subject in SUBJECTS.items():
        if any(point.net == net for point in points.values()):
            parts += [f"## {subject.title}", f"![speed-up of {subject.title}](papers/{net}.svg)"]
            parts += [systems_text(points, net, gbit) for gbit in FAST_GBIT]
            parts.append(rates_text(points, net))
    parts.append("Raw data: [papers/points.csv](papers/points.csv).")
    return "\n\n".join(parts) + "\n"


def plan_cell(goal: Goal) -> Cell:
    return Cell(goal.net, goal.gbit, goal.nodes, "plan")


def reached(points: Points, goal: Goal) -> float:
    """The speed-up that counts: the smaller of what the planner says and what comes of it message by message."""
    cell = plan_cell(goal)
    return min(points[cell].speed_up, points[replace(cell, system=PLAYED)].speed_up)


def _missed_text(points: Points, missed: Sequence[Goal]) -> str:
    told = []
    for goal in missed:
        title, got = SUBJECTS[goal.net].title, reached(points, goal)
        told.append(
            f"{title} on {goal.nodes} nodes at {goal.gbit} Gbit/s reaches {got:.2f}, {got / goal.least:.1%} of its goal"
        )
    return f"{len(GOALS) - len(missed)} of {len(GOALS)} goals are met, in simulation. Not met: {'; '.join(told)}."


# -- pictures ---------------------------------------------------------------------------------------------------------
def draw(points: Points, net: str) -> bytes:
    """Speed-up by nodes, a panel per rate, a line per system; stars are published."""
    figure = Figure(figsize=(4.2 * len(PANELS_GBIT), 3.6))
    panels: Sequence[Any] = figure.subplots(1, len(PANELS_GBIT))
    for panel, gbit in zip(panels, PANELS_GBIT, strict=True):
        nodes = [*NODES[1:], *(MANY_NODES if gbit in FAST_GBIT else ())]
        panel.plot(nodes, nodes, color="lightgrey", linewidth=0.75, label="linear")
        for system in SYSTEMS:
            found = [(n, points[cell]) for n in nodes if (cell := Cell(net, gbit, n, system)) in points]
            is_ours = system == "plan"
            panel.plot(
                [n for n, _ in found],
                [point.speed_up for _, point in found],
                label=system,
                linewidth=1.6 if is_ours else 0.8,
                color="black" if is_ours else None,
            )
        for curve in PUBLISHED.get(net, ()):
            if curve.gbit == gbit:
                panel.plot([*curve.speed_ups], [*curve.speed_ups.values()], "*", markersize=6, label=f"{curve.label} ★")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_xticks(nodes, [str(n) for n in nodes], fontsize=7)
        panel.yaxis.set_major_formatter(_plain)
        panel.set(title=f"{SUBJECTS[net].title}, {gbit} Gbit/s", xlabel="nodes", ylabel="speed-up")
        panel.legend(fontsize=6)
    figure.tight_layout()
    return svg_of(figure)


def _plain(value: float, place: int) -> str:
    return f"{value:g}"


def svg_of(figure: Figure) -> bytes:
    """The same points give the same bytes."""
    image = io.BytesIO()
    with rc_context({"svg.hashsalt": "poseidon"}):
        figure.savefig(image, format="svg", metadata={"Date": None, "Creator": None})
    return image.getvalue()


def write_page() -> None:
    points = read_points()
    PAGE.write_text(page_text(points), encoding="utf-8")
    for net in SUBJECTS:
        if any(point.net == net for point in points.values()):
            (FOLDER / f"{net}.svg").write_bytes(draw(points, net))
    print(f"wrote {PAGE}")
