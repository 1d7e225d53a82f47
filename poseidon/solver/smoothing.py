"""The loss averaged over the last `average_loss` iterations, for display.

The recurrence is Caffe's, in the loss's own precision: a running mean while the window fills, then the oldest loss is
exchanged for the newest. All of it stays on the loss's device: nobody waits until somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class LossWindow:
    """The last losses and their mean."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._losses: list[Tensor] = []
        self._count = 0
        self.mean = torch.zeros(())

    def add(self, loss: Tensor) -> Tensor:
        """Takes the loss of the next iteration and returns the mean."""
        if len(self._losses) < self._size:
            filled = len(self._losses)
            self.mean = loss if filled == 0 else (self.mean * filled + loss) / (filled + 1)
            self._losses.append(loss)
        else:
            oldest = self._count % self._size
            self.mean = self.mean + (loss - self._losses[oldest]) / self._size
            self._losses[oldest] = loss
        self._count += 1
        return self.mean

    def state(self, averaged: Callable[[Sequence[Tensor]], Sequence[Tensor]] = list) -> dict[str, Any]:
        """All of it as numbers, each as `averaged` gives it."""
        mean, *losses = averaged([self.mean, *self._losses])
        return {"losses": [float(x) for x in losses], "count": self._count, "mean": float(mean)}

    @classmethod
    def from_state(cls, size: int, state: Mapping[str, Any], dtype: torch.dtype) -> LossWindow:
        """The window that gave this state, or an empty one if it was of another size."""
        window = cls(size)
        losses, count = state["losses"], state["count"]
        if len(losses) != min(count, size):
            return window
        window._losses = [torch.tensor(loss, dtype=dtype) for loss in losses]
        window._count = count
        window.mean = torch.tensor(state["mean"], dtype=dtype)
        return window
