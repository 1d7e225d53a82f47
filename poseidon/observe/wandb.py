"""Weights & Biases as a sink, if its package is installed. What it does with the figures is its own affair: it sends
them to its servers unless WANDB_MODE says otherwise."""

from __future__ import annotations

import importlib
from typing import Any

from poseidon.errors import UsageError
from poseidon.observe.scalars import scalars_of
from poseidon.record import Facts, Metric


class Wandb:
    """One run of a project."""

    def __init__(self, project: str) -> None:
        try:
            self._wandb: Any = importlib.import_module("wandb")
        except ImportError:
            raise UsageError("--wandb needs Weights & Biases: `pip install wandb`, or leave --wandb out") from None
        self._project = project
        self._run: Any = None
        self.line = f"curves    Weights & Biases, project {project}"

    def begin(self, facts: Facts) -> None:
        about = {name: value for name, value in facts.cluster.items() if isinstance(value, str | int | float)}
        config = {**facts.configuration, **about, "command": " ".join(facts.command)}
        try:
            self._run = self._wandb.init(project=self._project, config=config)
        except Exception as problem:  # its own: no login, no network, …
            raise UsageError(f"--wandb={self._project}: Weights & Biases does not begin: {problem}") from problem

    def write(self, metric: Metric) -> None:
        self._run.log(scalars_of(metric), step=metric.iteration)

    def end(self, facts: Facts) -> None:
        self._run.summary["outcome"] = facts.outcome
        self._run.finish(exit_code=int((facts.outcome or "").startswith("failed")))
