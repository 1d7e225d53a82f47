"""Rule: how a gradient changes a parameter.

Every rule begins and ends alike, in Caffe's order, for a parameter w with gradient g (the sum over iter_size batches):

    g ← g / iter_size
    g ← g + decay · w         (L2; L1: decay · sign(w))     decay = weight_decay · decay_mult
    u ← the rule's own formula of g, with rate = lr · lr_mult and the parameter's history
    w ← w - u

A rule holds no state: what it remembers is in the slot. So it can be applied to one parameter the moment its gradient
is final, to a shard of one, or to all together, and the bits are the same: one slot or many go through the same
kernels (torch's foreach), which are elementwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from poseidon.errors import SolverError
from poseidon.spec import caffe_pb2

REGULARIZATIONS = ("L2", "L1")


@dataclass(frozen=True, slots=True)
class Hyper:
    """The settings of one iteration's update, the same for all parameters."""

    iteration: int
    rate: float
    momentum: float = 0.0
    momentum2: float = 0.999
    delta: float = 1e-8
    rms_decay: float = 0.99
    weight_decay: float = 0.0
    regularization: str = "L2"
    iter_size: int = 1

    @classmethod
    def of(cls, param: caffe_pb2.SolverParameter, iteration: int, rate: float) -> Hyper:
        return cls(
            iteration=iteration,
            rate=rate,
            momentum=param.momentum,
            momentum2=param.momentum2,
            delta=param.delta,
            rms_decay=param.rms_decay,
            weight_decay=param.weight_decay,
            regularization=param.regularization_type,
            iter_size=param.iter_size,
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter, or a part of one, as a rule sees it: the value, the rule's memory of it, its multipliers."""

    name: str
    value: Tensor
    history: tuple[Tensor, ...]
    rate_mult: float = 1.0
    decay_mult: float = 1.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Slots that share their multipliers, column by column; `history[k]` is the k-th memory of each."""

    values: list[Tensor]
    grads: list[Tensor]
    history: tuple[list[Tensor], ...]
    rate: float


class Rule(ABC):
    """Base of all rules: `compute` is the formula, the rest is common."""

    type: ClassVar[str]
    num_histories: ClassVar[int] = 1
    rests_when_frozen: ClassVar[bool] = False
    """With rate 0 and a history of zeros nothing changes, neither value nor history."""

    def check(self, param: caffe_pb2.SolverParameter) -> None:
        """Raises for settings this rule cannot work with."""
        if param.weight_decay and param.regularization_type not in REGULARIZATIONS:
            raise SolverError(
                f"regularization_type is {param.regularization_type!r}, expected {' or '.join(REGULARIZATIONS)}"
            )

    @abstractmethod
    def compute(self, batch: Batch, hyper: Hyper) -> list[Tensor]:
        """What to subtract from each value. May overwrite the gradients, and does change the history."""

    @final
    def slot(self, name: str, value: Tensor, rate_mult: float = 1.0, decay_mult: float = 1.0) -> Slot:
        """A slot with an empty history of the right number and shape."""
        history = tuple(torch.zeros_like(value, requires_grad=False) for _ in range(self.num_histories))
        return Slot(name, value, history, rate_mult, decay_mult)

    @final
    def rests(self, slot: Slot) -> bool:
        """True if no update can ever change the slot: frozen layers should cost no time."""
        return self.rests_when_frozen and slot.rate_mult == 0 and not any(bool(h.any()) for h in slot.history)

    @final
    @torch.no_grad()
    def update(
        self, slots: Sequence[Slot], grads: Sequence[Tensor], hyper: Hyper, *, keep_update: bool = False
    ) -> None:
        """Changes the slots' values and histories. The gradients are used up: afterwards their memory holds the
        update that was subtracted if `keep_update`, as in Caffe, else anything."""
        for (rate_mult, decay_mult), members in _by_multipliers(slots).items():
            batch = Batch(
                values=[slots[i].value for i in members],
                grads=[grads[i] for i in members],
                history=tuple([slots[i].history[k] for i in members] for k in range(self.num_histories)),
                rate=hyper.rate * rate_mult,
            )
            if hyper.iter_size != 1:
                torch._foreach_mul_(batch.grads, 1 / hyper.iter_size)
            _regularize(batch, hyper.weight_decay * decay_mult, hyper.regularization)
            update = self.compute(batch, hyper)
            torch._foreach_sub_(batch.values, update)
            if keep_update:
                for grad, part in zip(batch.grads, update, strict=True):
                    grad.copy_(part)


def _by_multipliers(slots: Sequence[Slot]) -> dict[tuple[float, float], list[int]]:
    groups: dict[tuple[float, float], list[int]] = {}
    for i, slot in enumerate(slots):
        groups.setdefault((slot.rate_mult, slot.decay_mult), []).append(i)
    return groups


def _regularize(batch: Batch, decay: float, kind: str) -> None:
    if decay:
        toward = batch.values if kind == "L2" else torch._foreach_sign(batch.values)
        torch._foreach_add_(batch.grads, toward, alpha=decay)
