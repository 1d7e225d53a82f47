"""Tiles: the few figures everybody looks for first."""

from __future__ import annotations

from dataclasses import dataclass

from poseidon.record import Metric
from poseidon.report.contents import Contents
from poseidon.report.words import bytes_text, figure, percent, seconds_text


@dataclass(frozen=True, slots=True)
class Tile:
    name: str
    value: str
    unit: str = ""
    note: str = ""


def tiles_of(contents: Contents) -> list[Tile]:
    """What the run can say of itself, most wanted first."""
    return [
        *_score(contents),
        *_loss(contents),
        *_throughput(contents),
        *_speedup(contents),
        *_hidden(contents),
        *_iteration(contents),
        *_sent(contents),
    ]


def _score(contents: Contents) -> list[Tile]:
    """The first score of the last test, and when it was best."""
    chart = next((chart for chart in contents.curves if chart.key == "accuracy"), None)
    if chart is None:
        return []
    series = next((one for one in chart.series if one.dashed), chart.series[-1])
    known = [point for point in series.points if point.value is not None]
    best = max(known, key=lambda point: point.value or 0.0)
    last = known[-1]
    is_share = all(0 <= (point.value or 0) <= 1 for point in known)
    show = _share if is_share else figure
    note = f"best {show(best.value or 0.0)} at {best.iteration}" if best.value != last.value else "the best so far"
    return [Tile(series.name.capitalize(), show(last.value or 0.0), note=note)]


def _share(value: float) -> str:
    return f"{100 * value:.2f} %"


def _loss(contents: Contents) -> list[Tile]:
    def loss(metric: Metric) -> float | None:
        return metric.loss if metric.loss is not None else next(iter(metric.outputs.values()), None)

    training = contents.run.training
    if not training:
        return []
    last = loss(training[-1])
    note = f"after {training[-1].iteration} iterations"
    return [Tile("Training loss", figure(last) if last is not None else "not finite", note=note)]


def _throughput(contents: Contents) -> list[Tile]:
    rate = contents.speed.samples_per_second
    if rate is None:
        return []
    each = f"{figure(rate / contents.speed.num_workers)} per worker" if contents.speed.num_workers > 1 else ""
    return [Tile("Throughput", figure(rate), "samples/s", each)]


def _speedup(contents: Contents) -> list[Tile]:
    found = contents.speed
    if contents.baseline is not None and found.samples_per_second and contents.baseline.samples_per_second:
        ratio = found.samples_per_second / contents.baseline.samples_per_second
        return [Tile("Speed-up", f"{figure(ratio)} ×", note="measured against the baseline")]
    if found.speedup is None or found.efficiency is None or found.num_workers < 2:
        return []
    note = f"an estimate, {percent(found.efficiency)} of ideal"
    return [Tile("Speed-up", f"{figure(found.speedup)} ×", f"of {found.num_workers}", note)]


def _hidden(contents: Contents) -> list[Tile]:
    total = contents.overlap
    if total is None or total.hidden_share is None:
        return []
    return [Tile("Communication hidden", percent(total.hidden_share), note="behind computing")]


def _iteration(contents: Contents) -> list[Tile]:
    seconds = contents.speed.iteration_s
    planned = contents.plan.iteration_s if contents.plan is not None else None
    if seconds is None and planned is None:
        return []
    value, unit = seconds_text(seconds if seconds is not None else planned or 0.0).rsplit(" ", 1)
    note = f"predicted {seconds_text(planned)}" if planned is not None and seconds is not None else ""
    return [Tile("Iteration", value, unit, note)]


def _sent(contents: Contents) -> list[Tile]:
    rate = contents.speed.sent_bps([node.ranks for node in contents.nodes])
    if not rate or contents.plan is None:
        return []
    value, unit = bytes_text(rate).rsplit(" ", 1)
    link = contents.run.facts.cluster.get("bandwidth")
    note = ""
    if isinstance(link, int | float) and not isinstance(link, bool) and link > 0:
        note = f"of {bytes_text(link)}/s that the link can carry"
    return [Tile("Sent by the busiest node", value, f"{unit}/s", note)]
