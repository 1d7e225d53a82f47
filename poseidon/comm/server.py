"""SERVER: the unit's elements are dealt out over the workers; each owner sums, applies the rule, and hands out values.

    push    worker r sends its gradient of shard q to q, for all q                   (P-1)/P of the unit
    update  q adds the P gradients in rank order and applies the rule to its shard: optimizer state lives only there
    pull    q's updated values go to all others, straight into their parameters      (P-1)/P of the unit

Shards of a Send are its elements one after another; their lengths differ by one at most.
"""

from __future__ import annotations

from torch import Tensor

from poseidon.comm.exchange import DenseExchange, Wiring
from poseidon.comm.part import Part, flat, regions_within
from poseidon.plan import Send
from poseidon.transport import Work
from poseidon.transport.collectives import all_gather, reduce_shards, shards_of

_PUSH, _PULL = 0, 1


class Server(DenseExchange):
    def __init__(self, wiring: Wiring) -> None:
        super().__init__(wiring)
        self._values: Tensor | None = None

    def begin(self, send: Send) -> Work:
        return reduce_shards(
            self.transport, shards_of(self.memory(send), self.transport.size), tag=self.tag(send, _PUSH)
        )

    def reduced(self, send: Send, token: Work) -> list[Part]:
        token.wait()
        first, last = owned(send.start, send.stop, self.transport.rank, self.transport.size)
        summed = self.memory(send)[first - send.start : last - send.start]
        return self.parts(first, last, summed, everywhere=False)

    def spread(self, send: Send) -> None:
        if len(self.members) == 1:
            self._gather(send, flat(self.members[0].value)[send.start : send.stop])
            return
        if self._values is None:
            self._values = self.members[0].value.new_empty(self.num_elems)
        first, last = owned(send.start, send.stop, self.transport.rank, self.transport.size)
        for member, region in regions_within(self.members, first, last):
            self._values[member.offset + region.start : member.offset + region.stop] = region.of(member.value)
        self._gather(send, self._values[send.start : send.stop])
        for member, region in regions_within(self.members, send.start, send.stop):
            region.of(member.value).copy_(self._values[member.offset + region.start : member.offset + region.stop])

    def _gather(self, send: Send, values: Tensor) -> None:
        all_gather(self.transport, shards_of(values, self.transport.size), tag=self.tag(send, _PULL)).wait()


def owned(start: int, stop: int, owner: int, num_owners: int) -> tuple[int, int]:
    """Where an owner's shard of [start, stop) begins and ends; the first ones are longer by one if it must be."""
    length, longer = divmod(stop - start, num_owners)
    first = start + owner * length + min(owner, longer)
    return first, first + length + (owner < longer)
