"""Balance: batches dealt out in proportion to how fast each worker computes (--balance).

Every EVERY iterations each worker's median compute time is told to all, in a sum that costs nobody any time: it begins
after one iteration and is read after the next. With t_r seconds for n_r samples worker r needs about t_r / n_r for
each, and the parts n'_r ∝ n_r / t_r would let all finish together. That everybody waits for the slowest is all it is
about:

    predicted gain = max_r t_r / max_r (n'_r · t_r / n_r)

and parts are dealt out anew only if it is GAIN or more: noise of a few percent moves nothing, a worker that becomes
faster or slower does. What an iteration costs besides its samples is found in the next look, at the new parts.

The median leaves out a pause now and then. Everybody decides from the same numbers, so all deal out alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.run.meter import ClockFigures
from poseidon.run.roundtable import Roundtable
from poseidon.transport import Work

EVERY = 10
GAIN = 1.05
SKIPPED = 1  # iterations after a change: memory of new sizes, batches read ahead anew


def parts_for(rates: Sequence[float], total: int) -> tuple[int, ...]:
    """`total` samples dealt out to workers of these rates (samples per second), at least one each: the slowest is done
    as early as can be."""
    whole = sum(rates)
    parts = [max(1, int(total * rate / whole)) for rate in rates]
    while sum(parts) > total:  # those who would get less than one have it from who is busy longest
        busiest = max((r for r in range(len(parts)) if parts[r] > 1), key=lambda r: parts[r] / rates[r])
        parts[busiest] -= 1
    while sum(parts) < total:
        soonest = min(range(len(parts)), key=lambda r: (parts[r] + 1) / rates[r])
        parts[soonest] += 1
    return tuple(parts)


def better_parts(parts: Sequence[int], seconds: Sequence[float], gain: float = GAIN) -> tuple[int, ...] | None:
    """From the seconds that workers took for their parts: better ones, or None if those gain too little."""
    rates = [part / max(taken, 1e-9) for part, taken in zip(parts, seconds, strict=True)]
    found = parts_for(rates, sum(parts))
    expected = max(part / rate for part, rate in zip(found, rates, strict=True))
    return found if max(seconds) >= gain * expected and found != tuple(parts) else None


@dataclass(frozen=True, slots=True)
class _Look:
    """Under way: by rank, seconds per iteration."""

    seconds: Tensor
    work: Work


class Balance:
    """`deal(parts)` deals batches out anew, and calls `reset`; all workers come to it after the same iteration."""

    def __init__(
        self,
        table: Roundtable,
        parts: tuple[int, ...],
        deal: Callable[[tuple[int, ...]], None],
        every: int = EVERY,
    ) -> None:
        self.parts = parts
        self._table, self._deal, self._every = table, deal, every
        self._taken: list[float] = []
        self._num_skipped = 0
        self._look: _Look | None = None

    def after(self, figures: ClockFigures) -> None:
        """One more iteration of this worker."""
        if self._look is not None:
            self._read(self._look)
        if self._num_skipped < SKIPPED:
            self._num_skipped += 1
            return
        self._taken.append(figures.compute_s)
        if len(self._taken) == self._every:
            self._look = self._begin()

    def reset(self, parts: tuple[int, ...]) -> None:
        """Measures anew: the net has been given these parts."""
        self.end()
        self.parts, self._num_skipped = parts, 0
        self._taken.clear()

    def end(self) -> None:
        """Waits for a look that is under way; nobody acts on it any more."""
        if self._look is not None:
            self._look.work.wait()
            self._look = None

    def _begin(self) -> _Look:
        seconds = torch.zeros(self._table.size, dtype=torch.float64)
        seconds[self._table.rank] = statistics.median(self._taken)
        self._taken.clear()
        return _Look(seconds, self._table.start_sum(seconds))

    def _read(self, look: _Look) -> None:
        self._look = None
        look.work.wait()
        found = better_parts(self.parts, look.seconds.tolist())
        if found is not None:
            self._deal(found)
