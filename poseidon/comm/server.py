"""SERVER: the unit's elements are dealt out over the workers; each owner sums, applies the rule, and hands out values.

    push    worker r sends its gradient of shard q to q, for all q                   (P-1)/P of the unit
    update  q adds the P gradients in rank order and applies the rule to its shard: optimizer state lives only there
    pull    q's updated values go to all others, straight into their parameters      (P-1)/P of the unit

Shards of a Send are its elements one after another; their lengths differ by one at most. Of a unit with several members
values travel in the bucket, whose gradients have been used up by then.
"""

from __future__ import annotations

from torch import Tensor

from poseidon.comm.exchange import DenseExchange
from poseidon.comm.part import Member, Part, Region, flat, regions_within
from poseidon.plan import Send
from poseidon.transport import Work
from poseidon.transport.collectives import all_gather, reduce_shards, shards_of

PUSH, PULL = 0, 1


class ShardedExchange(DenseExchange):
    """Base of the dense schemes whose elements have owners."""

    def owned(self, send: Send, owner: int) -> tuple[int, int]:
        """Where an owner's shard of a Send begins and ends, counted in elements of the unit."""
        return owned(send.start, send.stop, owner, self.transport.size)

    def shards(self, owner: int) -> list[tuple[Member, Region]]:
        return [found for send in self.sends for found in regions_within(self.members, *self.owned(send, owner))]

    def own_shard(self, send: Send) -> Tensor:
        """This worker's gradient of its own shard."""
        first, last = self.owned(send, self.transport.rank)
        return self.memory(send)[first - send.start : last - send.start]


class Server(ShardedExchange):
    def begin(self, send: Send) -> Work:
        return reduce_shards(
            self.transport, shards_of(self.memory(send), self.transport.size), tag=self.tag(send, PUSH)
        )

    def arrive(self, send: Send, token: Work) -> bool:
        token.wait()
        return True

    def reduced(self, send: Send, token: Work) -> list[Part]:
        return self.parts(*self.owned(send, self.transport.rank), self.own_shard(send), everywhere=False)

    def spread(self, send: Send) -> None:
        if len(self.members) == 1:
            self._gather(send, flat(self.members[0].value))
            return
        for member, region in regions_within(self.members, *self.owned(send, self.transport.rank)):
            self.bucket[member.offset + region.start : member.offset + region.stop] = region.of(member.value)
        self._gather(send, self.bucket)
        for member, region in regions_within(self.members, send.start, send.stop):
            region.of(member.value).copy_(self.bucket[member.offset + region.start : member.offset + region.stop])

    def _gather(self, send: Send, values: Tensor) -> None:
        """Fills the Send's elements of `values` from their owners."""
        shards = shards_of(values[send.start : send.stop], self.transport.size)
        all_gather(self.transport, shards, tag=self.tag(send, PULL)).wait()


def owned(start: int, stop: int, owner: int, num_owners: int) -> tuple[int, int]:
    """Where an owner's shard of [start, stop) begins and ends; the first ones are longer by one if it must be."""
    length, longer = divmod(stop - start, num_owners)
    first = start + owner * length + min(owner, longer)
    return first, first + length + (owner < longer)
