"""Speed: throughput, and speed-up over one worker, from what a run has told.

iteration     seconds per iteration, mean over what was displayed, without the first entry (it warms up)
compute       what a worker computes in it, mean of all
speed-up      P · compute / iteration: against one worker that computes as long and never waits
efficiency    speed-up / P
measured      throughput / that of another run, if one was given: what really counts
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from poseidon.record import Metric, Run


@dataclass(frozen=True, slots=True)
class WorkerMeans:
    """One worker's mean iteration: seconds and bytes."""

    rank: int
    compute_s: float
    wait_s: float
    other_s: float
    sent_bytes: float
    received_bytes: float


@dataclass(frozen=True, slots=True)
class Speed:
    """None: the run did not tell."""

    num_workers: int
    iteration_s: float | None
    samples_per_second: float | None
    workers: tuple[WorkerMeans, ...]

    @property
    def efficiency(self) -> float | None:
        if not self.workers or not self.iteration_s:
            return None
        return sum(worker.compute_s for worker in self.workers) / len(self.workers) / self.iteration_s

    @property
    def speedup(self) -> float | None:
        return None if self.efficiency is None else self.efficiency * self.num_workers

    def sent_bps(self, nodes: Sequence[Collection[int]] = ()) -> float | None:
        """Bytes per second that leave the node that sends most. `nodes`: the ranks of each; who stands in none is a
        node of its own."""
        if not self.workers or not self.iteration_s:
            return None
        known = {rank for ranks in nodes for rank in ranks}
        alone = [(worker.rank,) for worker in self.workers if worker.rank not in known]
        totals = [sum(w.sent_bytes for w in self.workers if w.rank in ranks) for ranks in (*nodes, *alone)]
        return max(totals) / self.iteration_s


def speed_of(run: Run) -> Speed:
    """Means over the run, each entry counting for the iterations since the one before."""
    told = [metric for metric in run.training if metric.iteration_seconds]
    told = told[1:] if len(told) > 1 else told
    weights = _weights(run.training, told)
    iteration_s = _mean([metric.iteration_seconds or 0.0 for metric in told], weights)
    rates = [(m.samples_per_second, w) for m, w in zip(told, weights, strict=True) if m.samples_per_second]
    # Of rates the mean over samples is the harmonic one.
    samples = sum(weight for _, weight in rates)
    seconds = sum(weight / rate for rate, weight in rates)
    return Speed(
        num_workers=run.num_workers,
        iteration_s=iteration_s,
        samples_per_second=samples / seconds if seconds else None,
        workers=_workers(told, weights, iteration_s),
    )


def _weights(training: Sequence[Metric], told: Sequence[Metric]) -> list[float]:
    """How many iterations each entry stands for."""
    before = dict(zip((metric.iteration for metric in training[1:]), training, strict=False))
    return [
        float(max(1, metric.iteration - before[metric.iteration].iteration)) if metric.iteration in before else 1.0
        for metric in told
    ]


def _workers(told: Sequence[Metric], weights: Sequence[float], iteration_s: float | None) -> tuple[WorkerMeans, ...]:
    found = []
    for rank in sorted({worker.rank for metric in told for worker in metric.workers}):
        entries = [(w, weight) for m, weight in zip(told, weights, strict=True) for w in m.workers if w.rank == rank]
        shares = [weight for _, weight in entries]

        def mean(name: str, entries=entries, shares=shares) -> float:
            return _mean([getattr(worker, name) for worker, _ in entries], shares) or 0.0

        compute_s, wait_s = mean("compute_s"), mean("wait_s")
        other_s = max(0.0, (iteration_s or 0.0) - compute_s - wait_s)
        found.append(WorkerMeans(rank, compute_s, wait_s, other_s, mean("sent_bytes"), mean("received_bytes")))
    return tuple(found)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total if total else None
