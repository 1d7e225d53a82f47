"""Pictures of `bench/staleness.py`: accuracy against samples, and loss against clocks in managed mode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bench.papers_page import svg_of
from bench.staleness_managed import SMOOTH, smoothed
from bench.staleness_worker import ACCURACY, BATCH, HOSTS

COLOURS = {"s = 0": "C0", "s = 3": "C1", "importance": "C0", "random": "C1"}


def draw_all(results: Mapping[str, Any], folder: Path) -> None:
    """What has been measured."""
    for part, draw in (("samples", draw_samples), ("managed", draw_managed)):
        if part in results:
            (folder / f"staleness-{part}.svg").write_bytes(draw(results[part]))


def draw_samples(found: Mapping[str, Any]) -> bytes:
    figure = Figure(figsize=(7, 3.6))
    panel: Any = figure.subplots()
    for run in found["runs"]:
        of_batches = [iteration * HOSTS * BATCH for iteration, _ in run["tests"]]
        label = run["who"] if run["seed"] == 1 else None
        panel.plot(of_batches, [accuracy for _, accuracy in run["tests"]], COLOURS[run["who"]], lw=1, label=label)
    panel.axhline(ACCURACY, color="k", linestyle=":", linewidth=0.8)
    panel.set(xlabel="samples", ylabel="accuracy on the test set", ylim=(0.95, 0.99))
    panel.legend()
    figure.tight_layout()
    return svg_of(figure)


def draw_managed(found: Mapping[str, Any]) -> bytes:
    figure = Figure(figsize=(7, 3.6))
    panel: Any = figure.subplots()
    for run in found["runs"]:
        losses, label = smoothed(run["losses"]), run["who"] if run["seed"] == 0 else None
        panel.plot(range(SMOOTH, SMOOTH + len(losses)), losses, COLOURS[run["who"]], lw=1, label=label)
    panel.axhline(found["target"], color="k", linestyle=":", linewidth=0.8)
    panel.set(xlabel="clocks", ylabel=f"loss, mean of {SMOOTH} clocks", yscale="log")
    panel.legend()
    figure.tight_layout()
    return svg_of(figure)
