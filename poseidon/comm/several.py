"""Several: a dense unit with a large parameter, exchanged in groups of members side by side.

To send members in one message they are copied into a bucket. That is worth it for small ones; a large one, like the
weight of a fully-connected layer that its bias travels with, goes from its gradient's own memory, and a message more
does not count beside it. So a group is a large member alone, or neighbours that are small.

Each group is an exchange of its own over its part of every Send, on channels of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from poseidon.comm.exchange import TAGS_PER_SEND, Exchange, Wiring
from poseidon.comm.part import Member, Part, Region, members_of
from poseidon.plan import Send

LARGE_BYTES = 16 << 20
CHANNELS_PER_GROUP = 2
MOST_GROUPS = TAGS_PER_SEND // CHANNELS_PER_GROUP


def groups_of(members: Sequence[Member]) -> list[list[Member]]:
    """The members as groups; one, if copying them is as well."""
    groups: list[list[Member]] = []
    was_large = True
    for member in members:
        is_large = member.num_elems * member.parameter.element_size() >= LARGE_BYTES
        if is_large or was_large:
            groups.append([])
        groups[-1].append(member)
        was_large = is_large
    return groups if len(groups) <= MOST_GROUPS else [list(members)]


class Several(Exchange):
    """`make` gives the exchange of one group."""

    def __init__(self, wiring: Wiring, make: Callable[[Wiring], Exchange]) -> None:
        super().__init__(wiring)
        self._parts: list[_Group] = []
        for number, group in enumerate(groups_of(self.members)):
            self._parts.append(_Group(wiring, group, number * CHANNELS_PER_GROUP, make))
        self._of_member = {member.name: (part, inner) for part in self._parts for member, inner in part.pairs()}

    def offer(self, member: Member, grad: Tensor | None) -> None:
        part, inner = self._of_member[member.name]
        part.exchange.offer(inner, grad)

    def begin(self, send: Send) -> list[Any]:
        return [part.exchange.begin(part.sends[send]) for part in self._within(send)]

    def arrive(self, send: Send, token: list[Any]) -> bool:
        has_left = True
        for part, own in zip(self._within(send), token, strict=True):
            has_left &= part.exchange.arrive(part.sends[send], own)
        return has_left

    def reduced(self, send: Send, token: list[Any]) -> list[Part]:
        found = []
        for part, own in zip(self._within(send), token, strict=True):
            found += part.exchange.reduced(part.sends[send], own)
        return found

    def spread(self, send: Send) -> None:
        for part in self._within(send):
            part.exchange.spread(part.sends[send])

    def drop(self) -> None:
        for part in self._parts:
            part.exchange.drop()

    def shards(self, owner: int) -> list[tuple[Member, Region]]:
        return [found for part in self._parts for found in part.exchange.shards(owner)]

    def state(self) -> dict[str, Tensor]:
        states = [part.exchange.state() for part in self._parts]
        return {f"{number}/{name}": tensor for number, state in enumerate(states) for name, tensor in state.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for number, part in enumerate(self._parts):
            start = f"{number}/"
            own = {name.removeprefix(start): tensor for name, tensor in state.items() if name.startswith(start)}
            part.exchange.restore(own)

    def _within(self, send: Send) -> list[_Group]:
        return [part for part in self._parts if send in part.sends]


class _Group:
    """Some members of a unit: their exchange, and what it sends of each Send of the unit."""

    def __init__(
        self, wiring: Wiring, members: Sequence[Member], channel: int, make: Callable[[Wiring], Exchange]
    ) -> None:
        self._members = members
        first = members[0].offset
        num_elems = sum(member.num_elems for member in members)
        self.sends: dict[Send, Send] = {}
        order: list[Send | None] = []
        for send in wiring.order:
            order.append(None)
            if send is None or send.unit != wiring.unit.index:
                continue
            start, stop = max(send.start - first, 0), min(send.stop - first, num_elems)
            if start < stop:
                order[-1] = self.sends[send] = replace(send, start=start, stop=stop)
        inner = members_of([(member.name, member.parameter) for member in members])
        self.exchange = make(replace(wiring, members=inner, order=order, channel=channel))

    def pairs(self) -> list[tuple[Member, Member]]:
        """Each member as the unit has it, and as the group's exchange has it."""
        return list(zip(self._members, self.exchange.members, strict=True))
