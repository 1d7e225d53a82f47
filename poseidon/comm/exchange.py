"""Exchange: carries one unit's gradient from all workers to the place, or places, where the rule is applied.

An iteration of a unit, for each Send of the plan:

    offer(member, grad)      compute thread: a member's gradient is final (None: there is no dense one)
    begin(send)              in the plan's order, by the starter or, of gathers, by anybody: first operations go
    arrive(send, token)      waits until all is here that the sum is made of, where that can be told
    reduced(send, token)     waits; the parts whose summed gradients are here now
    (the rule is applied to the parts)
    spread(send)             brings updated values to the other workers, where the scheme wants that

and after the last of them `drop`. One exchange never runs in two iterations at once: the next forward pass, or the next
offer, waits for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poseidon.comm.part import Member, Part, Region, flat, regions_within
from poseidon.plan import Send, Unit
from poseidon.transport import Transport
from poseidon.transport.completion import Completion

# A Send has this many channels of its own, so that messages of different Sends never meet.
TAGS_PER_SEND = 8
# For what is gathered between iterations; Sends never get as far.
STATE_TAG = 1 << 23


@dataclass(frozen=True, slots=True)
class Wiring:
    """What every exchange is given.

    `order` is the plan's, from which all workers derive the same tags. An exchange of some members only has its own
    part of each Send in its place, None where it has none, and uses a Send's channels from `channel` on.
    """

    unit: Unit
    members: Sequence[Member]
    transport: Transport
    order: Sequence[Send | None]
    channel: int = 0


class Exchange(ABC):
    """Base of all schemes; see the module's docstring."""

    def __init__(self, wiring: Wiring) -> None:
        self.unit = wiring.unit
        self.members = list(wiring.members)
        self.transport = wiring.transport
        self.num_elems = sum(member.num_elems for member in self.members)
        self._tags = {
            send: place * TAGS_PER_SEND + wiring.channel
            for place, send in enumerate(wiring.order)
            if send is not None and send.unit == self.unit.index
        }
        # Who used these tags before (a plan that was renewed, a probe) is not counted.
        self._sent = {send: self.transport.sent_with(self._channels(send)) for send in self._tags}

    def __str__(self) -> str:
        return f"unit {self.unit.index}: {', '.join(member.name for member in self.members)}"

    @property
    def sends(self) -> list[Send]:
        """The unit's own, from first to last."""
        return list(self._tags)

    def tag(self, send: Send, channel: int = 0) -> int:
        """The tag of one of a Send's channels, the same on all workers."""
        return self._tags[send] + channel

    def newly_sent(self, send: Send) -> int:
        """Payload that this worker has sent for a Send since it was asked last. One thread at a time asks."""
        before, now = self._sent[send], self.transport.sent_with(self._channels(send))
        self._sent[send] = now
        return now - before

    def _channels(self, send: Send) -> range:
        first = self._tags[send] // TAGS_PER_SEND * TAGS_PER_SEND
        return range(first, first + TAGS_PER_SEND)

    # -- an iteration -----------------------------------------------------------------------------------------------
    @abstractmethod
    def offer(self, member: Member, grad: Tensor | None) -> None:
        """Takes a member's final gradient, which nobody else will write to before the exchange is over."""

    @abstractmethod
    def begin(self, send: Send) -> Any:
        """Starts; what it returns is given to `reduced`. Must not block on other workers."""

    def arrive(self, send: Send, token: Any) -> bool:
        """Waits for all that the sum is made of and returns True: making it may have to wait for the device, and others
        may have the link meanwhile. False, at once: `reduced` still needs the link."""
        return False

    @abstractmethod
    def reduced(self, send: Send, token: Any) -> list[Part]:
        """Waits until the sum over all workers is here, and returns it in parts."""

    def spread(self, send: Send) -> None:  # noqa: B027  (most schemes update everywhere and have nothing to hand out)
        """Hands updated values to the workers that did not apply the rule themselves. Returns when its own are in."""

    @abstractmethod
    def drop(self) -> None:
        """The iteration is over: lets go of gradients and whatever else only it needed."""

    def discard(self) -> None:  # noqa: B027  (most schemes are given nothing before a gradient is final)
        """Drops what passes have handed over for an iteration that never became final."""

    # -- what outlasts an iteration ---------------------------------------------------------------------------------
    def shards(self, owner: int) -> list[tuple[Member, Region]]:
        """The regions to which `owner` alone applies the rule, each as it stands in its parts.

        Members that stand in nobody's list are updated by everybody.
        """
        return []

    def state(self) -> dict[str, Tensor]:
        """What this worker must remember from one iteration to the next, beside parameters and histories."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027  (most schemes remember nothing)
        """Goes on from what `state` gave; what is missing there begins anew."""


class Gathering(Exchange):
    """An exchange whose Sends each gather something from all workers in one operation, which is quickly begun. On the
    host nothing else has to be waited for: such a Send gets by without threads of the scheduler's."""

    @abstractmethod
    def begin(self, send: Send) -> Any:
        """Hands the operation to the transport's engine."""

    @abstractmethod
    def arrival(self, token: Any) -> Completion:
        """The operation."""

    def arrive(self, send: Send, token: Any) -> bool:
        self.arrival(token).wait()
        return True

    @property
    def is_on_host(self) -> bool:
        return all(member.value.device.type == "cpu" for member in self.members)


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
            self._memory = flat(own_memory(laid_out_like(member.value, grad)))
            return
        place = self.bucket[member.offset : member.offset + member.num_elems]
        if grad is None:
            place.zero_()
        else:
            place.copy_(flat(laid_out_like(member.value, grad)))
        self._memory = self.bucket

    def drop(self) -> None:
        self._memory = None

    @property
    def bucket(self) -> Tensor:
        """Memory for all elements of a unit with several members."""
        if self._bucket is None:
            self._bucket = self.members[0].value.new_empty(self.num_elems)
        return self._bucket

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


def laid_out_like(value: Tensor, grad: Tensor | None) -> Tensor:
    """The gradient laid out in memory like the parameter; zeros where there is none."""
    if grad is None:
        return torch.zeros_like(value)
    if grad.is_sparse:
        grad = grad.to_dense()
    if grad.dtype == value.dtype and (grad.stride() == value.stride() or _steps(grad) == _steps(value)):
        return grad
    return torch.empty_like(value).copy_(grad)


def _steps(tensor: Tensor) -> list[int]:
    """The strides that matter: along an axis of one element they may be anything."""
    return [stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True) if extent > 1]


def own_memory(grad: Tensor) -> Tensor:
    """The gradient in memory that is its alone, to be summed in place.

    Where a parameter is merely added (Bias, Parameter), autograd hands the diff of the sum itself to several takers, as
    views of one storage: what one of them sums, the others would see.
    """
    storage = grad.untyped_storage()
    holders = torch._C._storage_Use_Count(storage._cdata)  # the tensor, and `storage` here
    return grad if holders <= 2 else grad.clone(memory_format=torch.preserve_format)
