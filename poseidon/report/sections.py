"""The sections of a report, each as markup; one without anything to show says why, so that nobody looks for it."""

from __future__ import annotations

import math
import shlex

from poseidon.plan import CommPlan, Scheme, Unit
from poseidon.record import SIMULATION
from poseidon.report.contents import Contents
from poseidon.report.drawing import net_drawing
from poseidon.report.escaping import html
from poseidon.report.overlap import Overlap
from poseidon.report.tables import Cell, Column, Table, bars, legend, number, stack
from poseidon.report.words import bytes_text, count_text, figure, percent, seconds_text

_AXES = (
    '<div class="tools"><span class="segments" role="group" aria-label="Axis">'
    '<button type="button" data-axis="iteration" aria-pressed="true">Iterations</button>'
    '<button type="button" data-axis="seconds" aria-pressed="false">Seconds</button></span>'
    '<span class="quiet">Drag across a chart to look closer; a name in the legend hides its line.</span></div>'
)
_SCHEME_COLOURS = {
    Scheme.LOCAL: "gray",
    Scheme.RING: "blue",
    Scheme.DOUBLING: "blue",
    Scheme.SERVER: "violet",
    Scheme.TREE: "violet",
    Scheme.FACTORS: "green",
    Scheme.FACTOR_SERVER: "green",
    Scheme.ROWS: "orange",
    Scheme.POWER_SGD: "rose",
}


def section(key: str, title: str, body: str) -> str:
    return f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{html(title)}</h2>{body}</section>'


def paragraph(text: str, css: str = "quiet") -> str:
    return f'<p class="{css}">{html(text)}</p>'


# -- curves and speed -------------------------------------------------------------------------------------------------
def curves(contents: Contents) -> str:
    if not contents.curves:
        return section("curves", "Learning", paragraph("No losses were recorded yet: they come with every display."))
    return section("curves", "Learning", f'{_AXES}<div class="charts" data-charts="curves"></div>')


def speed(contents: Contents) -> str:
    found = contents.speed
    lines = []
    if found.iteration_s:
        lines.append(f"An iteration took {seconds_text(found.iteration_s)} on average.")
    if found.speedup is not None and found.num_workers > 1:
        lines.append(
            f"Speed-up: {figure(found.speedup)} of {found.num_workers}, against one worker that computes as long as "
            "these do and never waits."
        )
    if contents.baseline is not None and found.samples_per_second and contents.baseline.samples_per_second:
        ratio = found.samples_per_second / contents.baseline.samples_per_second
        lines.append(
            f"Measured against the run given as baseline ({contents.baseline.num_workers} "
            f"{'worker' if contents.baseline.num_workers == 1 else 'workers'}, "
            f"{figure(contents.baseline.samples_per_second)} samples/s): {figure(ratio)} times as fast."
        )
    if not contents.speeds:
        lines = lines or ["No speeds were recorded yet: they come with every display."]
        return section("speed", "Speed", paragraph(" ".join(lines)))
    charts = f'{_AXES}<div class="charts" data-charts="speeds"></div>'
    return section("speed", "Speed", (paragraph(" ".join(lines), "") if lines else "") + charts)


# -- timeline ---------------------------------------------------------------------------------------------------------
_KEYS = (
    ("forward", "c-blue", "forward"),
    ("backward", "c-orange", "backward"),
    ("update", "c-violet", "update"),
    ("wait", "hatch c-gray", "waiting"),
    ("move", "c-green", "on the wire"),
    ("ready,start,end", "c-gray", "▼ ready · | begins · ▲ in place"),
)


def timeline(contents: Contents) -> str:
    if contents.timeline is None:
        return section(
            "timeline",
            "Timeline",
            paragraph(
                "No events were recorded: `poseidon train --record` keeps those of a few iterations after warm-up."
            ),
        )
    body = _headline(contents) + _gantt(contents) + _overlap_table(contents)
    return section("timeline", "Timeline", body)


def _headline(contents: Contents) -> str:
    total = contents.overlap
    if total is None or total.hidden_share is None:
        return paragraph("Nothing moved over the network in the recorded iterations.")
    waiting_s = total.standing_s / max(1, total.num_iterations) / len(contents.overlaps)
    return (
        f'<p class="headline">Communication hidden: <strong id="hidden">{percent(total.hidden_share)}</strong></p>'
        + paragraph(
            "of the time in which bytes moved, their worker was computing. "
            f"For {seconds_text(waiting_s)} of an iteration a worker waited."
        )
    )


def _gantt(contents: Contents) -> str:
    assert contents.timeline is not None
    keys = "".join(
        f'<button type="button" class="key" aria-pressed="true" data-gantt="kind:{kinds}">'
        f'<span class="swatch {css}"></span>{text}</button>'
        for kinds, css, text in _KEYS
    )
    jumps = "".join(
        f'<button type="button" data-gantt="iteration:{iteration}">{iteration}</button>'
        for iteration in contents.timeline["iterations"]
    )
    uncertain = contents.timeline["uncertainty"]
    clocks = f" Clocks of the ranks agree to {seconds_text(uncertain / 1e6)}." if uncertain else ""
    left_out = contents.timeline["left_out"]
    more = f" {left_out} more ranks were recorded and are not drawn." if left_out else ""
    return (
        f'<div class="tools">{keys}</div>'
        '<div class="tools"><button type="button" data-gantt="in" aria-label="Zoom in">+</button>'
        '<button type="button" data-gantt="out" aria-label="Zoom out">−</button>'
        f'<button type="button" data-gantt="all">All</button><span class="quiet">iteration</span>'
        f'<span class="segments">{jumps}</span></div>'
        '<div class="gantt" id="gantt"><div class="gantt-frame"><canvas tabindex="0" role="application" '
        'aria-label="Timeline of all ranks. Arrow keys left and right move, plus and minus zoom, 0 shows all, '
        'n and p go from event to event, up and down from track to track."></canvas></div>'
        '<div class="tip" role="status" hidden></div></div>'
        + paragraph(
            "Drag to move, Ctrl and the wheel or two fingers to zoom, a double click to look closer. Pointing at an "
            f"event brings out everything that belongs to the same layer.{clocks}{more}"
        )
    )


def _overlap_table(contents: Contents) -> str:
    columns = (
        Column("Worker"),
        Column("Communication"),
        Column("Hidden", True),
        Column("Network busy", True),
        Column("Waited for it", True),
        Column("Computed", True),
    )
    rows = [_overlap_row(one, f"rank {one.rank}") for one in contents.overlaps]
    table = Table(
        label="Overlap by worker",
        columns=columns,
        rows=rows,
        caption=f"Per iteration, over {contents.overlaps[0].num_iterations} recorded ones.",
    )
    keys = legend(
        [("c-green", "hidden behind computing"), ("c-rose", "the worker waited"), ("c-gray", "between two layers")]
    )
    return keys + table.markup()


def _overlap_row(one: Overlap, name: str) -> list[Cell]:
    count, network_s = max(1, one.num_iterations), one.network_s or math.inf
    shares = [("c-green", one.hidden_s), ("c-rose", one.waited_s), ("c-gray", one.between_s)]
    said = "nothing moved" if one.hidden_share is None else f"{percent(one.hidden_share)} hidden"
    return [
        Cell(name, one.rank),
        Cell("", one.hidden_share, stack([(css, seconds / network_s) for css, seconds in shares], said)),
        number(one.hidden_share, percent(one.hidden_share or 0)),
        number(one.network_s, seconds_text(one.network_s / count)),
        number(one.waited_s, seconds_text(one.waited_s / count)),
        number(one.compute_s, seconds_text(one.compute_s / count)),
    ]


# -- workers ----------------------------------------------------------------------------------------------------------
def workers(contents: Contents) -> str:
    found = contents.speed.workers
    if not found:
        return section("workers", "Workers", paragraph("What single workers did was not recorded."))
    longest = max(worker.compute_s + worker.wait_s + worker.other_s for worker in found) or 1.0
    hosts = {str(rank): node.host for node in contents.nodes for rank in node.ranks}
    rows = []
    for worker in found:
        parts = [("c-blue", worker.compute_s), ("hatch c-gray", worker.wait_s), ("c-violet", worker.other_s)]
        said = f"computes {seconds_text(worker.compute_s)}, waits {seconds_text(worker.wait_s)}"
        rows.append(
            [
                Cell(f"rank {worker.rank}", worker.rank),
                Cell(hosts.get(str(worker.rank), "")),
                Cell("", worker.wait_s, stack([(css, part / longest) for css, part in parts], said)),
                number(worker.compute_s, seconds_text(worker.compute_s)),
                number(worker.wait_s, seconds_text(worker.wait_s)),
                number(worker.sent_bytes, bytes_text(worker.sent_bytes)),
                number(worker.received_bytes, bytes_text(worker.received_bytes)),
            ]
        )
    columns = (
        Column("Worker"),
        Column("Host"),
        Column("Iteration"),
        Column("Computes", True),
        Column("Waits", True),
        Column("Sent", True),
        Column("Received", True),
    )
    table = Table("Workers", columns, rows, caption="Means per iteration over the run, without its first display.")
    keys = legend([("c-blue", "computing"), ("hatch c-gray", "waiting for parameters"), ("c-violet", "the rest")])
    return section("workers", "Workers", keys + table.markup())


# -- plan and traffic -------------------------------------------------------------------------------------------------
def plan(contents: Contents) -> str:
    if contents.plan is None:
        return section(
            "plan", "Plan", paragraph("One worker alone exchanges nothing: there was no plan. " + contents.problem)
        )
    made = contents.plan
    waited_s = made.iteration_s - made.compute_s
    text = (
        f"Made for {made.cluster.describe()}. An iteration was predicted to take {seconds_text(made.iteration_s)}: "
        f"{seconds_text(made.compute_s)} of computing and {seconds_text(waited_s)} of rebuilding, updating and "
        f"waiting; {bytes_text(made.bytes_sent)} sent per node in {len(made.order)} pieces"
        f"{'' if made.wire == 'fp32' else f', dense gradients as {made.wire}'}."
    )
    if made.cluster.num_nodes == 1:
        text += " All workers share one host: gradients go through its memory, and nothing crosses a network."
    keys = legend([("c-gray", "dense"), ("c-orange", "as factors or rows"), ("c-green", "chosen")])
    return section("plan", "Plan", paragraph(text, "") + keys + _plan_table(made).markup())


def _plan_table(made: CommPlan) -> Table:
    most = max((max(unit.dense_bytes, unit.factor_bytes or 0) for unit in made.units), default=0) or 1
    columns = (
        Column("Unit"),
        Column("Shape", css="tight"),
        Column("Parameters", True),
        Column("Scheme"),
        Column("Bytes by each way"),
        Column("Dense", True),
        Column("Factors", True),
        Column("Sent", True),
        Column("Time alone", True),
        Column("Why", css="wide"),
    )
    rows = [_plan_row(unit, most) for unit in made.units]
    totals = [sum(unit.num_elems for unit in made.units), sum(unit.dense_bytes for unit in made.units), made.bytes_sent]
    sums = [
        Cell("all units"),
        Cell(""),
        number(totals[0], count_text(totals[0])),
        Cell(""),
        Cell(""),
        number(totals[1], bytes_text(totals[1])),
        Cell(""),
        number(totals[2], bytes_text(totals[2])),
        Cell(""),
        Cell(""),
    ]
    return Table("The plan, unit by unit", columns, rows, "Bytes are what a node sends in an iteration.", sums)


def _plan_row(unit: Unit, most: int) -> list[Cell]:
    ways = [("c-gray", unit.dense_bytes / most)]
    said = f"dense {bytes_text(unit.dense_bytes)}"
    if unit.factor_bytes is not None:
        ways.append(("c-orange", unit.factor_bytes / most))
        said += f", as factors or rows {bytes_text(unit.factor_bytes)}"
    ways.append(("c-green", unit.bytes_sent / most))
    badge = f'<span class="badge c-{_SCHEME_COLOURS[unit.scheme]}">{html(unit.scheme.name)}</span>'
    return [
        Cell(_unit_name(unit)),
        Cell(" × ".join(map(str, unit.shapes[0])) or "1"),
        number(unit.num_elems, count_text(unit.num_elems)),
        Cell(unit.scheme.name, markup=badge),
        Cell("", unit.dense_bytes, bars(ways, f"{said}, chosen {bytes_text(unit.bytes_sent)}")),
        number(unit.dense_bytes, bytes_text(unit.dense_bytes)),
        number(unit.factor_bytes, bytes_text(unit.factor_bytes or 0)),
        number(unit.bytes_sent, bytes_text(unit.bytes_sent)),
        number(unit.seconds, seconds_text(unit.seconds)),
        Cell(unit.reason),
    ]


def _unit_name(unit: Unit) -> str:
    others = len(unit.params) - 1
    return unit.params[0] + (f" and {others} more" if others else "")


def traffic(contents: Contents) -> str:
    if contents.plan is None or not any(one.predicted_bytes or one.measured_bytes for one in contents.traffic):
        return ""
    most = max(max(one.predicted_bytes, one.measured_bytes or 0) for one in contents.traffic) or 1
    columns = (
        Column("Unit"),
        Column("Predicted and measured"),
        Column("Predicted", True),
        Column("Measured", True),
        Column("Measured / predicted", True),
    )
    rows = []
    for one in contents.traffic:
        ways = [("c-blue", one.predicted_bytes / most), ("c-green", (one.measured_bytes or 0) / most)]
        rows.append(
            [
                Cell(_unit_name(contents.plan.units[one.index])),
                Cell("", float(one.predicted_bytes), bars(ways, f"predicted {bytes_text(one.predicted_bytes)}")),
                number(one.predicted_bytes, bytes_text(one.predicted_bytes)),
                number(one.measured_bytes, bytes_text(one.measured_bytes or 0)),
                number(one.ratio, f"{one.ratio or 0:.2f}"),
            ]
        )
    predicted = sum(one.predicted_bytes for one in contents.traffic)
    known = [one.measured_bytes for one in contents.traffic if one.measured_bytes is not None]
    measured = sum(known) if len(known) == len(contents.traffic) else None
    ratio = measured / predicted if measured is not None and predicted else None
    sums = [
        Cell("all units"),
        Cell(""),
        number(predicted, bytes_text(predicted)),
        number(measured, bytes_text(measured or 0)),
        number(ratio, f"{ratio or 0:.2f}"),
    ]
    table = Table("Bytes by unit", columns, rows, "What the busiest node sends in an iteration.", sums)
    keys = legend([("c-blue", "predicted by the plan"), ("c-green", "measured")])
    return section("traffic", "On the wire", keys + table.markup())


# -- net, cluster, configuration --------------------------------------------------------------------------------------
def net(contents: Contents) -> str:
    if contents.source is None or contents.facts is None:
        return section("net", "Net", paragraph(f"No net was recorded. {contents.problem}".strip()))
    total = sum(layer.num_params for layer in contents.facts.layers.values())
    text = f"{len(contents.source.net.layer)} layers"
    text += f", {count_text(total)} parameters." if total else "."
    tools = (
        '<div class="tools"><button type="button" data-net="in" aria-label="Larger">+</button>'
        '<button type="button" data-net="out" aria-label="Smaller">−</button>'
        '<button type="button" data-net="full">Full size</button>'
        '<button type="button" data-net="fit">Whole width</button></div>'
    )
    drawing = net_drawing(contents.source, contents.facts)
    frame = f'<div class="net-frame" id="net-frame" tabindex="0" role="region" aria-label="The net">{drawing}</div>'
    listing = f"<details><summary>Prototxt</summary><pre>{html(contents.run.facts.net)}</pre></details>"
    return section("net", "Net", paragraph(text, "") + tools + frame + listing)


_RATES = {"bandwidth": lambda value: f"{bytes_text(value)}/s", "latency": seconds_text}


def cluster(contents: Contents) -> str:
    facts = contents.run.facts
    rows = []
    for name, value in facts.cluster.items():
        if name == "nodes":
            continue
        known = _RATES.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        rows.append([Cell(name), Cell(known(value) if known and is_number else str(value))])
    nodes = [[Cell(node.host), Cell(", ".join(map(str, node.ranks)))] for node in contents.nodes]
    body = Table("Facts of the cluster", (Column("What"), Column("Value")), rows).markup() if rows else ""
    if nodes:
        body += Table("Hosts", (Column("Host"), Column("Ranks")), nodes).markup()
    body = f'<div class="two">{body}</div>' if body else paragraph("Nothing is known of the cluster.")
    return section("cluster", "Cluster", body)


def configuration(contents: Contents) -> str:
    facts = contents.run.facts
    command = f'<pre class="command">{html(shlex.join(facts.command))}</pre>' if facts.command else ""
    rows = [[Cell(name), Cell(value)] for name, value in facts.configuration.items()]
    table = Table("Configuration", (Column("Setting"), Column("Value")), rows).markup() if rows else ""
    kind = paragraph("A simulation: nothing was trained.") if facts.kind == SIMULATION else ""
    return section("configuration", "Configuration", kind + command + ("<p></p>" if command else "") + table)


SECTIONS = (
    ("curves", "Learning", curves),
    ("speed", "Speed", speed),
    ("timeline", "Timeline", timeline),
    ("workers", "Workers", workers),
    ("plan", "Plan", plan),
    ("traffic", "On the wire", traffic),
    ("net", "Net", net),
    ("cluster", "Cluster", cluster),
    ("configuration", "Configuration", configuration),
)
