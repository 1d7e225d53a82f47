"""RuleSite: where the solver's rule meets the parts of parameters, and where the rule's memory of them is kept.

A parameter that every worker updates has its whole history on every worker, in the solver's slots. One that is dealt
out over owners (SERVER, FACTOR_SERVER) has it at the owners only, each a piece: the solver's slot then holds none, and
memory falls with P. For a snapshot the pieces are gathered at rank 0, and every worker takes its own from one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from poseidon.comm import Exchange, Member, Part, Region
from poseidon.comm.exchange import STATE_TAG
from poseidon.solver.rules import Hyper, Rule, Slot
from poseidon.transport import Transport


class RuleSite:
    """Applies a rule to parts of parameters. `slots` are the solver's own list: histories that have owners leave it."""

    def __init__(self, rule: Rule, slots: list[Slot], exchanges: Sequence[Exchange], transport: Transport) -> None:
        self._rule = rule
        self._slots = slots
        self._places = {slot.name: place for place, slot in enumerate(slots)}
        self._exchanges = list(exchanges)
        self._transport = transport
        self._parts: dict[tuple[str, Region], Slot] = {}
        self._sharded = {member.name for _, member, _ in self._shards(range(transport.size))}
        self._moving: list[Slot] | None = None
        self._take([slot.history[k] for k in range(rule.num_histories) for slot in slots])
        for name in self._sharded:
            slots[self._places[name]] = replace(self._whole(name), history=())

    # -- updating ---------------------------------------------------------------------------------------------------
    def apply(self, parts: Sequence[Part], hyper: Hyper) -> None:
        if parts:
            self._rule.update(
                [self._slot(part.member, part.region) for part in parts], [part.grad for part in parts], hyper
            )

    def apply_still(self, names: Sequence[str], hyper: Hyper) -> None:
        """The rule on parameters that get no gradient: they decay, and their histories fade, as on one worker."""
        if self._moving is None:
            self._moving = [slot for slot in map(self._whole, names) if not self._rule.rests(slot)]
        if self._moving:
            self._rule.update(self._moving, [torch.zeros_like(slot.value) for slot in self._moving], hyper)

    def _whole(self, name: str) -> Slot:
        return self._slots[self._places[name]]

    def _slot(self, member: Member, region: Region) -> Slot:
        found = self._parts.get((member.name, region))
        if found is None:
            assert member.name not in self._sharded, f"{region} of {member.name} has another owner"
            history = self._whole(member.name).history
            found = self._add(member, region, tuple(region.of(whole) for whole in history))
        return found

    def _add(self, member: Member, region: Region, history: tuple[Tensor, ...]) -> Slot:
        part = replace(self._whole(member.name), value=region.of(member.value), history=history)
        self._parts[member.name, region] = part
        return part

    # -- histories --------------------------------------------------------------------------------------------------
    def histories(self) -> list[Tensor]:
        """All histories in the order of Caffe's files, at rank 0; the others give theirs and get none. All call it."""
        gathered = self._gather([0])
        if self._transport.rank != 0:
            return []
        wholes = [gathered.get(slot.name, slot.history) for slot in self._slots]
        return [whole[k] for k in range(self._rule.num_histories) for whole in wholes]

    @torch.no_grad()
    def restore(self, histories: Sequence[Tensor]) -> None:
        """Takes this worker's part of all histories, given in the order of Caffe's files."""
        self._take(histories)
        self._moving = None
        for place, slot in enumerate(self._slots):
            for own, given in zip(slot.history, histories[place :: len(self._slots)], strict=False):
                own.copy_(given)

    def hand_back(self) -> None:
        """Brings all histories into the solver's slots again, on every worker. All call it; nobody updates after."""
        for name, history in self._gather(range(self._transport.size)).items():
            self._slots[self._places[name]] = replace(self._whole(name), history=history)
        self._parts.clear()

    def _take(self, histories: Sequence[Tensor]) -> None:
        """Makes the pieces that this worker owns."""
        for _, member, region in self._shards([self._transport.rank]):
            wholes = histories[self._places[member.name] :: len(self._slots)]
            pieces = (region.of(torch.empty_like(member.value).copy_(whole)).clone() for whole in wholes)
            self._add(member, region, tuple(pieces))

    def _gather(self, receivers: Sequence[int]) -> dict[str, tuple[Tensor, ...]]:
        """By parameter with owners: its histories, put together at the receivers."""
        rank = self._transport.rank
        found: dict[str, tuple[Tensor, ...]] = {}
        for owner, member, region in self._shards(range(self._transport.size)):
            if rank in receivers and member.name not in found:
                found[member.name] = tuple(torch.empty_like(member.value) for _ in range(self._rule.num_histories))
            for k in range(self._rule.num_histories):
                place = region.of(found[member.name][k]) if rank in receivers else None
                if owner == rank:
                    self._give(self._parts[member.name, region].history[k], place, receivers)
                elif place is not None:
                    arriving = place.new_empty(place.numel())
                    self._transport.recv(arriving, owner, STATE_TAG).wait()
                    place.copy_(arriving.view(place.shape))
        return found

    def _give(self, piece: Tensor, place: Tensor | None, receivers: Sequence[int]) -> None:
        others = [receiver for receiver in receivers if receiver != self._transport.rank]
        works = [self._transport.send(piece.reshape(-1), receiver, STATE_TAG) for receiver in others]
        if place is not None:
            place.copy_(piece)
        for work in works:
            work.wait()

    def _shards(self, owners: Sequence[int]) -> Iterator[tuple[int, Member, Region]]:
        for exchange in self._exchanges:
            for owner in owners:
                for member, region in exchange.shards(owner):
                    yield owner, member, region
