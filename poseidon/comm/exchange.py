"""Exchange: carries one unit's gradient from all workers to the place, or places, where the rule is applied.

An iteration of a unit, for each Send of the plan:

    offer(member, grad)      compute thread: a member's gradient is final (None: there is no dense one)
    begin(send)              starter thread, in the plan's order: first operations are on their way
    reduced(send, token)     waits; the parts whose summed gradients are here now
    (the rule is applied to the parts)
    spread(send)             brings updated values to the other workers, where the scheme wants that

One exchange never runs in two iterations at once: the next forward pass waits for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poseidon.comm.part import Member, Part, flat, regions_within
from poseidon.plan import Send, Unit
from poseidon.transport import Transport

# A Send has this many channels of its own, so that messages of different Sends never meet.
TAGS_PER_SEND = 4


@dataclass(frozen=True, slots=True)
class Wiring:
    """What every exchange is given. `order` is the plan's, from which all workers derive the same tags."""

    unit: Unit
    members: Sequence[Member]
    transport: Transport
    order: Sequence[Send]


class Exchange(ABC):
    """Base of all schemes; see the module's docstring."""

    def __init__(self, wiring: Wiring) -> None:
        self.unit = wiring.unit
        self.members = list(wiring.members)
        self.transport = wiring.transport
        self.num_elems = sum(member.num_elems for member in self.members)
        self._tags = {
            send: place * TAGS_PER_SEND for place, send in enumerate(wiring.order) if send.unit == self.unit.index
        }

    def tag(self, send: Send, channel: int = 0) -> int:
        """The tag of one of a Send's channels, the same on all workers."""
        return self._tags[send] + channel

    @abstractmethod
    def offer(self, member: Member, grad: Tensor | None) -> None:
        """Takes a member's final gradient, which nobody else will write to before the exchange is over."""

    @abstractmethod
    def begin(self, send: Send) -> Any:
        """Starts; what it returns is given to `reduced`. Must not block on other workers."""

    @abstractmethod
    def reduced(self, send: Send, token: Any) -> list[Part]:
        """Waits until the sum over all workers is here, and returns it in parts."""

    def spread(self, send: Send) -> None:  # noqa: B027  (most schemes update everywhere and have nothing to hand out)
        """Hands updated values to the workers that did not apply the rule themselves. Returns when its own are in."""


class DenseExchange(Exchange):
    """An exchange of the gradient's elements as they are, in one run of memory.

    A unit of one parameter is sent from the gradient's own memory; several are copied into a bucket that is made once.
    """

    def __init__(self, wiring: Wiring) -> None:
        super().__init__(wiring)
        self._bucket: Tensor | None = None
        self._memory: Tensor | None = None

    def offer(self, member: Member, grad: Tensor | None) -> None:
        if len(self.members) == 1:
            self._memory = flat(_like(member.value, grad))
            return
        if self._bucket is None:
            self._bucket = member.value.new_empty(self.num_elems)
        place = self._bucket[member.offset : member.offset + member.num_elems]
        if grad is None:
            place.zero_()
        else:
            place.copy_(flat(_like(member.value, grad)))
        self._memory = self._bucket

    def memory(self, send: Send) -> Tensor:
        """This worker's gradient, elements [start, stop) of the unit."""
        assert self._memory is not None, "every member is offered before a unit begins"
        return self._memory[send.start : send.stop]

    def parts(self, start: int, stop: int, grads: Tensor, *, everywhere: bool = True) -> list[Part]:
        """Elements [start, stop) of the unit, whose summed gradients are `grads`."""
        found = []
        for member, region in regions_within(self.members, start, stop):
            first = member.offset - start
            found.append(Part(member, region, grads[first + region.start : first + region.stop], everywhere))
        return found


def _like(value: Tensor, grad: Tensor | None) -> Tensor:
    """The gradient laid out in memory like the parameter; zeros where there is none."""
    if grad is None:
        return torch.zeros_like(value)
    if grad.is_sparse:
        grad = grad.to_dense()
    if grad.dtype == value.dtype and grad.stride() == value.stride():
        return grad
    return torch.empty_like(value).copy_(grad)
