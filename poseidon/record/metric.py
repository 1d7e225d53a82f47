"""Metric: what a run tells about itself at one moment; a line of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TRAIN, TEST = PHASES = ("train", "test")


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What one worker did per iteration, since the metric before: seconds, payload bytes, and by how many clocks the
    oldest parameters were behind that it has read (0: exact)."""

    rank: int
    compute_s: float
    wait_s: float
    sent_bytes: float
    received_bytes: float
    staleness: float = 0.0


@dataclass(frozen=True, slots=True)
class Metric:
    """
    phase                 train: at an iteration that is displayed; test: a test net's means
    seconds               since the run started
    outputs               by blob; `name[2]` is an element of a blob with several. None: it was no finite number
    loss                  train: the sum of all losses, smoothed as the solver shows it; test: only if it was asked for
    lr                    the learning rate of the iteration
    samples_per_second    of all workers together; None where nobody knows how many samples an iteration has
    iteration_seconds     mean since the metric before
    net_index             which test net
    """

    phase: str
    iteration: int
    seconds: float
    outputs: Mapping[str, float | None] = field(default_factory=dict)
    loss: float | None = None
    lr: float | None = None
    samples_per_second: float | None = None
    iteration_seconds: float | None = None
    workers: tuple[WorkerFigures, ...] = ()
    net_index: int = 0
