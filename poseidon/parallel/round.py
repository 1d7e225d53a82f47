"""Round: the gradients of one iteration, from the first that is final until all have come back, averaged.

Parts arrive in other threads, in any order. A parameter whose last part has come is complete. What happens then depends
on who waits: without `overlap` all are collected for `grad`; with it they wait for the optimizer's step, and what comes
after that goes to the optimizer at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from poseidon.comm import Part

# Applies the optimizer to complete gradients, by name.
Update = Callable[[Mapping[str, Tensor]], None]


class Round:
    """`scale` is what sums are multiplied with: one over the number of workers. `sparse`: the tables whose gradients
    are wanted as rows; those of others are spread out here, after scaling."""

    def __init__(self, scale: float, sparse: frozenset[str] = frozenset()) -> None:
        self.scale, self.sparse = scale, sparse
        self.memory: dict[str, Tensor] = {}  # of dense gradients, laid out like their parameters
        self.means: set[str] = set()  # parameters whose sums come scaled
        self.stepped = [False]  # by the optimizer
        self.is_used: Callable[[str], bool] = lambda name: True  # by any worker's loss
        self._complete: dict[str, Tensor] = {}
        self._num_elems: dict[str, int] = {}  # that have come so far
        self._update: Update | None = None
        self._lock = threading.Lock()

    def take(self, parts: Sequence[Part]) -> None:
        """Sums have arrived. Called from threads of the scheduler's. What is complete now is handed over together: an
        optimizer called once for all of it is much cheaper than once for each."""
        complete = {part.member.name: grad for part in parts if (grad := self._averaged(part)) is not None}
        if complete:
            self._hand_over(complete)

    def collect(self) -> dict[str, Tensor]:
        """What is complete, and was not handed to an optimizer."""
        with self._lock:
            found, self._complete = self._complete, {}
        return found

    def release(self, update: Update) -> dict[str, Tensor]:
        """From now on gradients go to `update` as they complete; those that are complete already are returned."""
        with self._lock:
            self._update = update
            found, self._complete = self._complete, {}
        return found

    def _averaged(self, part: Part) -> Tensor | None:
        """The member's whole gradient, if this part was the last of it."""
        value, name = part.member.value, part.member.name
        if part.grad.is_sparse:
            part.grad.values().mul_(self.scale)
            return part.grad if name in self.sparse else part.grad.to_dense()
        target = self.memory.get(name)
        if target is None:
            assert part.region == part.member.whole, f"{part.region} of {name} has come without memory for the rest"
            grad = part.grad if name in self.means else part.grad.mul_(self.scale)
            return torch.as_strided(grad, value.shape, value.stride())
        torch.mul(part.grad, self.scale, out=part.region.of(target))
        with self._lock:
            self._num_elems[name] = self._num_elems.get(name, 0) + part.region.stop - part.region.start
            # Whoever gets it keeps it as long as it is needed: there may be no room for all gradients at once.
            return self.memory.pop(name) if self._num_elems[name] == value.numel() else None

    def _hand_over(self, grads: Mapping[str, Tensor]) -> None:
        with self._lock:
            update = self._update
            if update is None:
                self._complete |= grads
        if update is not None:
            update(grads)
