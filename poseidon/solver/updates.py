"""Updates: where final gradients meet the rule. The one seam between the step loop and communication.

    updates.begin()           before the first pass of an iteration
    updates.start(hyper)      before the last backward pass of an iteration: what becomes final from now on is its
    updates.finish()          after it: every gradient is applied, or on its way
    updates.drain()           before anybody reads parameters or histories: nothing is on its way any more

On one worker nothing is ever on its way: LocalUpdates applies the rule to all parameters at once in `finish`. A
distributed runtime applies it to each parameter when its exchange completes, and offers the same calls. It may keep
histories elsewhere than in the solver's slots, so whoever wants them asks here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from poseidon.solver.clip import Clipping, clip_gradients
from poseidon.solver.rules.rule import Hyper, Rule, Slot


class Updates(Protocol):
    """What the step loop needs of whoever applies gradients."""

    def begin(self) -> None: ...

    def start(self, hyper: Hyper) -> None: ...

    def finish(self) -> Clipping | None:
        """What clip_gradients did, if anything."""

    def drain(self) -> None: ...

    def histories(self) -> list[Tensor]:
        """All histories, each shaped like its parameter, in the order of Caffe's files: the first of every parameter,
        then the second of every one. Of several workers all call it, and rank 0 gets them."""

    def restore_histories(self, histories: Sequence[Tensor]) -> None:
        """Takes over histories in that order, on every worker."""


class LocalUpdates:
    """Applies the rule to every slot of this process, from the gradients in `.grad`.

    With `keep_update` the gradient's memory then holds what was subtracted, as Caffe leaves it in the diff.
    """

    def __init__(self, rule: Rule, slots: Sequence[Slot], *, clip_limit: float = -1.0, keep_update: bool = False):
        self._rule = rule
        self._slots = list(slots)
        self._clip_limit = clip_limit
        self.keep_update = keep_update
        self._hyper: Hyper | None = None
        self._moving: list[Slot] | None = None

    def begin(self) -> None:
        """Nothing to prepare."""

    def start(self, hyper: Hyper) -> None:
        self._hyper = hyper

    def finish(self) -> Clipping | None:
        assert self._hyper is not None, "start comes before finish"
        given = [slot.value.grad for slot in self._slots if slot.value.grad is not None]
        clipping = clip_gradients(given, self._clip_limit)
        moving = self._moving_slots()
        grads = [_gradient(slot, keep=self.keep_update) for slot in moving]
        self._rule.update(moving, grads, self._hyper, keep_update=self.keep_update)
        if self.keep_update and len(moving) < len(self._slots):
            self._still_gradients(moving)
        self._hyper = None
        return clipping

    def drain(self) -> None:
        """Nothing to wait for."""

    def histories(self) -> list[Tensor]:
        return [slot.history[k] for k in range(self._rule.num_histories) for slot in self._slots]

    @torch.no_grad()
    def restore_histories(self, histories: Sequence[Tensor]) -> None:
        for own, given in zip(self.histories(), histories, strict=True):
            own.copy_(given)
        self._moving = None

    def _moving_slots(self) -> list[Slot]:
        """All slots but those that no update can move."""
        if self._moving is None:
            self._moving = [slot for slot in self._slots if not self._rule.rests(slot)]
        return self._moving

    def _still_gradients(self, moving: Sequence[Slot]) -> None:
        moved = {id(slot) for slot in moving}
        for slot in self._slots:
            if id(slot) not in moved and slot.value.grad is not None:
                slot.value.grad.zero_()


def _gradient(slot: Slot, *, keep: bool) -> Tensor:
    """The gradient, zeros where backward gave none: weight decay and momentum act on such a parameter as well."""
    if slot.value.grad is not None:
        return slot.value.grad
    zeros = torch.zeros_like(slot.value, requires_grad=False)
    if keep and slot.value.requires_grad:
        slot.value.grad = zeros
    return zeros
