"""Narrow: dense elements cross the network as bf16 or fp16, and what rounding takes away is sent later.

    t = x + e      q = narrow(t)      e = t − q          x: to be sent, e: the error kept so far, q: what travels

So nothing is lost, only late. A worker keeps one e per element of a unit. For elements that others own, it is what its
own gradients still owe them; for those it owns itself, what it still owes the others:

    push           gradients of a shard go to its owner as q; the owner sums in rank order, its own in full width.
                   Workers of one node sum theirs first, in full width: what they owe, their leader owes for all
    RING           the owner hands out the sum as q; everybody, the owner too, applies the rule to that
    SERVER         the owner applies the rule to its shard in full width and hands out the change of its values as q;
                   everybody, the owner too, adds that to the values they share. The owner's true value is theirs plus e

Every worker computes with the same q in the same way, so replicas keep the same bits. fp16 cuts what is above its
largest number; the rest follows as error. What is not finite leaves no error behind.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from poseidon.comm.exchange import Wiring
from poseidon.comm.part import Member, Part, Region, regions_within
from poseidon.comm.server import PULL, PUSH, ShardedExchange
from poseidon.errors import SnapshotError
from poseidon.plan import Send
from poseidon.transport import Work
from poseidon.transport.cargo import Narrowing
from poseidon.transport.collectives import all_gather, reduce_shards, shards_of

NARROW_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_STATE = "error"


class ErrorFeedback:
    """The errors of a unit's elements; they are all 0 until something is narrowed."""

    def __init__(self, dtype: torch.dtype, num_elems: int, like: Tensor) -> None:
        self.dtype = dtype
        self._num_elems = num_elems
        self._like = like
        self._errors: Tensor | None = None
        self._making = threading.Lock()

    def narrowed(self, values: Tensor, start: int) -> Tensor:
        """Elements [start, …) as they travel; their error is settled anew."""
        error = self._of(start, values.numel())
        error += values
        finfo = torch.finfo(self.dtype)
        narrow = error.clamp(finfo.min, finfo.max).to(self.dtype)
        error -= narrow
        error.nan_to_num_(0.0, 0.0, 0.0)
        return narrow

    def to_true(self, values: Tensor, start: int) -> Tensor:
        """Turns an owner's shared values into its true ones, in place; returns a copy of the shared ones."""
        shared = values.clone()
        error = self._of(start, values.numel())
        values += error.view(values.shape)
        error.zero_()
        return shared

    def to_shared(self, values: Tensor, shared: Tensor, start: int) -> Tensor:
        """Turns them back, in place, and returns their change as it travels: to be added by everybody."""
        change = self.narrowed((values - shared).reshape(-1), start)
        values.copy_(shared)
        return change

    def state(self) -> dict[str, Tensor]:
        return {} if self._errors is None else {_STATE: self._errors}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        found = state.get(_STATE)
        if found is None:
            self._errors = None
            return
        if found.shape != (self._num_elems,):
            raise SnapshotError(
                f"the snapshot owes {found.numel()} elements of a unit that has {self._num_elems}: it was taken with "
                "another plan"
            )
        self._errors = self._like.new_empty(self._num_elems).copy_(found)

    def _of(self, start: int, num_elems: int) -> Tensor:
        with self._making:  # several Sends come here at a time
            if self._errors is None:
                self._errors = self._like.new_zeros(self._num_elems)
        return self._errors[start : start + num_elems]


class NarrowExchange(ShardedExchange):
    """Base of the dense schemes over a narrow wire: the push."""

    def __init__(self, wiring: Wiring, dtype: torch.dtype) -> None:
        super().__init__(wiring)
        self.errors = ErrorFeedback(dtype, self.num_elems, self.members[0].value)

    def begin(self, send: Send) -> Work:
        shards = shards_of(self.memory(send), self.transport.size)
        narrowing = Narrowing(self.wire, lambda owner, shard: self.errors.narrowed(shard, self.owned(send, owner)[0]))
        return reduce_shards(self.transport, shards, tag=self.tag(send, PUSH), narrowing=narrowing)

    @property
    def wire(self) -> torch.dtype:
        return self.errors.dtype

    def gathered(self, send: Send, own: Tensor) -> Tensor:
        """All elements of a Send as their owners hand them out; `own` are this worker's."""
        elements = own.new_empty(send.stop - send.start)
        shards = shards_of(elements, self.transport.size)
        shards[self.transport.rank].copy_(own)
        all_gather(self.transport, shards, tag=self.tag(send, PULL)).wait()
        return elements

    def state(self) -> dict[str, Tensor]:
        return self.errors.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.errors.restore(state)

    def _nothing(self) -> Tensor:
        return self.members[0].value.new_empty(0, dtype=self.wire)


class NarrowRing(NarrowExchange):
    def reduced(self, send: Send, token: Work) -> list[Part]:
        token.wait()
        first, _ = self.owned(send, self.transport.rank)
        sums = self.gathered(send, self.errors.narrowed(self.own_shard(send), first))
        gradient = self.memory(send)
        gradient.copy_(sums)
        return self.parts(send.start, send.stop, gradient)

    def shards(self, owner: int) -> list[tuple[Member, Region]]:
        return []  # owners only sum; everybody applies the rule


class NarrowServer(NarrowExchange):
    def __init__(self, wiring: Wiring, dtype: torch.dtype) -> None:
        super().__init__(wiring, dtype)
        self._shared: dict[tuple[str, Region], Tensor] = {}

    def arrive(self, send: Send, token: Work) -> bool:
        token.wait()
        return True

    def reduced(self, send: Send, token: Work) -> list[Part]:
        token.wait()
        first, last = self.owned(send, self.transport.rank)
        for member, region in regions_within(self.members, first, last):
            shared = self.errors.to_true(region.of(member.value), member.offset + region.start)
            self._shared[member.name, region] = shared
        return self.parts(first, last, self.own_shard(send), everywhere=False)

    def spread(self, send: Send) -> None:
        first, last = self.owned(send, self.transport.rank)
        changes = [self._nothing()]
        for member, region in regions_within(self.members, first, last):
            shared = self._shared.pop((member.name, region))
            changes.append(self.errors.to_shared(region.of(member.value), shared, member.offset + region.start))
        elements = self.gathered(send, torch.cat(changes))
        for member, region in regions_within(self.members, send.start, send.stop):
            at = member.offset - send.start
            region.of(member.value).add_(elements[at + region.start : at + region.stop])
