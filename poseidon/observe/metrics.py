"""Metrics: what the solver shows and what the workers did, put together and told to sinks. A solver's listener."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from poseidon.observe.effort import Effort
from poseidon.observe.sink import Sink
from poseidon.record import Metric, WorkerFigures
from poseidon.record.metric import TEST, TRAIN
from poseidon.solver import events

# A blob of a thousand probabilities is no curve.
_MOST_VALUES = 32


class Metrics:
    """
    efforts    what all workers have done so far, by rank, as far as this one knows
    samples    of one iteration, over all workers; None: nobody knows
    started    Unix seconds
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        efforts: Callable[[], Sequence[Effort]],
        samples: float | None,
        started: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._sinks, self._efforts, self._samples = sinks, efforts, samples
        self._started, self._now = started, now
        self._before: dict[int, Effort] = {}
        self._shown: events.IterationShown | None = None

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.IterationShown):
            self._shown = event
        elif isinstance(event, events.RateShown) and self._shown is not None:
            self._tell(self._trained(self._shown, event.rate))
            self._shown = None
        elif isinstance(event, events.TestDone):
            self._tell(
                Metric(
                    TEST,
                    event.iteration,
                    self._now() - self._started,
                    named_outputs(event.outputs),
                    event.loss,
                    net_index=event.net_index,
                )
            )

    def _tell(self, metric: Metric) -> None:
        for sink in self._sinks:
            sink.write(metric)

    def _trained(self, event: events.IterationShown, rate: float) -> Metric:
        workers = self._workers()
        # The slowest: no iteration is over before all have done theirs.
        seconds = max((worker.compute_s + worker.wait_s for worker in workers), default=None)
        speed = self._samples / seconds if self._samples is not None and seconds else None
        return Metric(
            TRAIN,
            event.iteration,
            self._now() - self._started,
            named_outputs(event.outputs),
            event.loss,
            rate,
            speed,
            seconds,
            workers,
        )

    def _workers(self) -> tuple[WorkerFigures, ...]:
        found = []
        for rank, effort in enumerate(self._efforts()):
            figures = effort.figures_since(self._before.get(rank, Effort()), rank)
            self._before[rank] = effort
            if figures is not None:
                found.append(figures)
        return tuple(found)


def named_outputs(outputs: Iterable[events.OutputValue]) -> dict[str, float | None]:
    """By blob; elements of a blob with several as `blob[0]`, `blob[1]`, …, the first ones if they are many."""
    listed = list(outputs)
    sizes = Counter(output.blob for output in listed)
    seen: Counter[str] = Counter()
    named: dict[str, float | None] = {}
    for output in listed:
        place = seen[output.blob]
        seen[output.blob] += 1
        if sizes[output.blob] == 1:
            named[output.blob] = output.value
        elif place < _MOST_VALUES:
            named[f"{output.blob}[{place}]"] = output.value
    return named
