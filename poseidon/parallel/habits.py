"""Habits: what iterations were like when the plan was made, and whether they still are.

Batch sizes that stay different, and factors that keep going dense, are reasons for a new plan. How long they have to
stay so is `patience`, in iterations. It doubles with every plan that was renewed for such a reason: where batches never
settle, measuring and planning take a smaller and smaller share of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from poseidon.parallel.words import Word

_FIRST_PATIENCE = 3


class Habits:
    """All workers are told the same words, and come to the same conclusions in the same iteration."""

    def __init__(self) -> None:
        self.patience = _FIRST_PATIENCE
        self._batches: list[int | None] | None = None  # by rank; None: it had no data
        self._num_surprises = 0  # in a row

    def forget(self) -> None:
        """A new plan is in use: the next iteration shows what it is for."""
        self._batches = None
        self._num_surprises = 0

    def have_changed(self, words: Sequence[Word]) -> bool:
        """An iteration is over: whether batches have been others for too long. Who has no data has no say."""
        batches = [word.batch if word.active else None for word in words]
        if self._batches is None:
            self._batches = batches
        differ = any(now not in (None, before) for now, before in zip(batches, self._batches, strict=True))
        self._num_surprises = self._num_surprises + 1 if differ else 0
        return self._num_surprises >= self.patience

    def may_be_dense(self, words: Sequence[Word]) -> bool:
        """Whether some worker has seen factors go dense too often."""
        return max(word.dense for word in words) >= self.patience

    def bear_more(self) -> None:
        """A plan is renewed because of what was noticed here."""
        self.patience *= 2
