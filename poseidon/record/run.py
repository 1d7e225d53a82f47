"""Run: a run folder as a whole; Facts: what stands in its `run.json`.

The plan is kept as the JSON of `poseidon/plan` gives it: `CommPlan.from_json(run.facts.plan_json())` brings it back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from poseidon.record.event import Trace
from poseidon.record.metric import TEST, TRAIN, Metric

FORMAT = "poseidon-run/1"
RUN, SIMULATION = KINDS_OF_RUN = ("run", "simulation")


@dataclass(frozen=True, slots=True)
class Facts:
    """
    kind            "run" or "simulation"
    command         the command line, word by word
    started         Unix seconds, as is `finished` (None: it goes on, or was killed)
    outcome         how it ended, in a few words; None as long as it has not
    configuration   solver settings and options, as text
    net             prototxt of the train net
    cluster         "workers": number, "nodes": [{"host", "ranks": […]}], "bandwidth" (bytes/s), "latency" (s),
                    "interface", "torch", "poseidon", "python", "threads", …
    plan            None: nothing was exchanged
    shapes          of the train net, at one worker's batch: "blobs" and "params" ("conv1/0"), extents by name
    """

    kind: str
    command: tuple[str, ...]
    started: float
    finished: float | None = None
    outcome: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    net: str = ""
    cluster: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)

    def plan_json(self) -> str | None:
        """The plan's own text, as `CommPlan.from_json` reads it."""
        return None if self.plan is None else json.dumps(self.plan)


@dataclass(frozen=True, slots=True)
class Run:
    """A folder's contents. `metrics` are in the order of the run; what a restart has done again is there once."""

    facts: Facts
    metrics: tuple[Metric, ...] = ()
    traces: tuple[Trace, ...] = ()

    @property
    def num_workers(self) -> int:
        return int(self.facts.cluster.get("workers", len(self.traces) or 1))

    @property
    def training(self) -> tuple[Metric, ...]:
        return tuple(metric for metric in self.metrics if metric.phase == TRAIN)

    @property
    def tests(self) -> tuple[Metric, ...]:
        return tuple(metric for metric in self.metrics if metric.phase == TEST)
