"""Contents: everything a report shows, computed from a run before anything is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poseidon.errors import PoseidonError
from poseidon.plan import CommPlan
from poseidon.record import Run
from poseidon.report.curves import Chart, charts_of, speed_charts
from poseidon.report.overlap import Overlap, overlap_of, together
from poseidon.report.speed import Speed, speed_of
from poseidon.report.timeline import Shown, timeline_of
from poseidon.report.traffic import UnitTraffic, traffic_of
from poseidon.spec import NetSource, parse_net
from poseidon.tools.net_notes import NetFacts, NetShapes, net_facts


@dataclass(frozen=True, slots=True)
class Node:
    host: str
    ranks: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """`shown`: iterations of the timeline; `baseline`: a run to compare speeds with."""

    shown: Shown
    baseline: Run | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """What is known; parts that a run has not recorded are None or empty.

    problem     why the net or the plan cannot be shown, if so
    """

    run: Run
    title: str
    curves: tuple[Chart, ...]
    speeds: tuple[Chart, ...]
    speed: Speed
    baseline: Speed | None
    timeline: dict[str, Any] | None
    overlaps: tuple[Overlap, ...]
    plan: CommPlan | None
    traffic: tuple[UnitTraffic, ...]
    source: NetSource | None
    facts: NetFacts | None
    nodes: tuple[Node, ...]
    problem: str = ""

    @property
    def overlap(self) -> Overlap | None:
        return together(self.overlaps) if self.overlaps else None


def contents_of(run: Run, options: ReportOptions) -> Contents:
    """Computes all of it."""
    problems: list[str] = []
    plan = _plan(run, problems)
    source = _net(run, problems)
    nodes = _nodes(run)
    return Contents(
        run=run,
        title=(source.net.name if source is not None else "") or "Net without a name",
        curves=charts_of(run),
        speeds=speed_charts(run),
        speed=speed_of(run),
        baseline=speed_of(options.baseline) if options.baseline is not None else None,
        timeline=_timeline(run, options.shown, plan),
        overlaps=tuple(overlap_of(trace) for trace in run.traces if trace.events),
        plan=plan,
        traffic=traffic_of(plan, run.traces, [node.ranks for node in nodes]) if plan is not None else (),
        source=source,
        facts=net_facts(source, plan=plan, shapes=_shapes(run)) if source is not None else None,
        nodes=nodes,
        problem=" ".join(problems),
    )


def _nodes(run: Run) -> tuple[Node, ...]:
    """Hosts and their ranks, as far as they can be read."""
    told = run.facts.cluster.get("nodes")
    return tuple(
        Node(str(node.get("host", "")), tuple(node["ranks"] if isinstance(node.get("ranks"), list) else ()))
        for node in (told if isinstance(told, list) else ())
        if isinstance(node, dict)
    )


def _plan(run: Run, problems: list[str]) -> CommPlan | None:
    text = run.facts.plan_json()
    if text is None:
        return None
    try:
        return CommPlan.from_json(text)
    except PoseidonError as problem:  # another version's plan: the rest of the report is still worth having
        problems.append(f"The plan cannot be read: {problem}")
        return None


def _net(run: Run, problems: list[str]) -> NetSource | None:
    if not run.facts.net.strip():
        return None
    try:
        return parse_net(run.facts.net)
    except PoseidonError as problem:
        problems.append(f"The net cannot be read: {problem}")
        return None


def _shapes(run: Run) -> NetShapes:
    return NetShapes(blobs=run.facts.shapes.get("blobs", {}), params=run.facts.shapes.get("params", {}))


def _timeline(run: Run, shown: Shown, plan: CommPlan | None) -> dict[str, Any] | None:
    """With the layers of every unit, so that the page can show what belongs together."""
    made = timeline_of(run, shown)
    if made is not None:
        units = plan.units if plan is not None else ()
        made["units"] = [list(dict.fromkeys(name.rpartition("/")[0] for name in unit.params)) for unit in units]
    return made
