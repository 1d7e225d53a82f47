"""Sink: whoever is told how a run goes: a folder, TensorBoard, Prometheus, Weights & Biases."""

from __future__ import annotations

import logging
from typing import Protocol

from poseidon.record import Facts, Metric

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Told by rank 0's compute thread, so nothing here may take long. `line` says where people find it."""

    line: str

    def begin(self, facts: Facts) -> None:
        """What is run."""

    def write(self, metric: Metric) -> None:
        """At every iteration that is displayed, and after every test."""

    def end(self, facts: Facts) -> None:
        """It is over; `facts.outcome` says how."""


class Lasting:
    """A sink that may fail without taking the run with it."""

    def __init__(self, sink: Sink) -> None:
        self._sink: Sink | None = sink
        self.line = sink.line

    def begin(self, facts: Facts) -> None:
        self._try("begin", facts)

    def write(self, metric: Metric) -> None:
        self._try("write", metric)

    def end(self, facts: Facts) -> None:
        self._try("end", facts)

    def _try(self, what: str, told: Facts | Metric) -> None:
        if self._sink is None:
            return
        try:
            getattr(self._sink, what)(told)
        except Exception as problem:  # somebody else's service among them: whatever it is, training is worth more
            _log.warning("%s; nothing more is told there, training goes on", problem or type(problem).__name__)
            self._sink = None
