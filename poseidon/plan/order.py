"""Units made ready for the link: small ones fused, large ones cut, and all pieces put in order.

Fusing: dense bundles of one scheme and element size, neighbours among their like, are put together in backward order
until a unit has at least `fuse_bytes`. So a small bias or Scale goes with what becomes ready next to it, and the first
layers' unit, which nobody can hide, is what is left over: small.

Cutting: a unit above `chunk_bytes` becomes the fewest pieces of nearly equal length that are not above it. FACTORS are
cut into rows; what they send counts half, as a dense unit's bytes cross the link twice. FACTOR_SERVER is cut into slabs
of whole slices of the larger dimension; the factor that every owner needs whole goes with the first.

Order, one for all workers, made beforehand:

    READY     as gradients become final: backward order, each unit whole
    NEEDED    the link is played: whenever it can take another piece, it takes one of those ready whose layer comes
              first in the next forward pass; a unit needed sooner so overtakes the rest of a bulky one
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise

from poseidon.plan.bundles import Bundle
from poseidon.plan.commplan import Scheme, Send, row_grains
from poseidon.plan.cost import Cost, CostModel, Leg, Load
from poseidon.plan.link import Operation, operation
from poseidon.plan.profile import ParamProfile
from poseidon.plan.traffic import Traffic


class Order(enum.Enum):
    READY = "ready"
    NEEDED = "needed"


@dataclass(frozen=True, slots=True)
class Grains:
    """So many grains, of so many elements each; what does not fill a grain goes with the last."""

    number: int
    num_elems: int


@dataclass(frozen=True, slots=True)
class Draft:
    """A unit in the making. `place` is the layer at which it becomes ready, and is needed."""

    params: tuple[ParamProfile, ...]
    scheme: Scheme
    place: int
    load: Load
    cost: Cost

    @property
    def grains(self) -> Grains:
        """What pieces are made of: elements, slices, or rows of factors, which share the unit's elements evenly."""
        if self.scheme is Scheme.FACTOR_SERVER:
            return Grains(self.load.num_slices, self.load.slice_elems)
        if self.scheme is Scheme.FACTORS:
            return Grains(*row_grains(self.load.num_elems, self.load.num_rows))
        return Grains(self.load.num_elems, 1)

    @property
    def grain_bytes(self) -> float:
        """What a grain counts against `chunk_bytes`."""
        if self.scheme is Scheme.FACTORS:
            return self.cost.bytes_sent / 2 / self.grains.number
        return self.grains.num_elems * self.load.elem_bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [start, stop) of a unit, and their way over the link.

    `pull` is the leg that comes after the owners' update; None: `push` is all of it.
    """

    unit: int
    start: int
    stop: int
    push: Operation
    pull: Operation | None


def fuse(
    bundles: Sequence[Bundle], schemes: Sequence[Scheme], fuse_bytes: float, model: CostModel
) -> tuple[Draft, ...]:
    """The units of a net in forward order, given each bundle's scheme."""
    groups: list[_Group] = []
    growing: dict[tuple[Scheme, int], _Group] = {}
    for bundle, scheme in zip(reversed(bundles), reversed(schemes), strict=True):
        key = (scheme, bundle.load.elem_bytes)
        group = growing.get(key)
        if group is None:
            group = _Group(scheme)
            groups.append(group)
            growing[key] = group
        group.bundles.insert(0, bundle)
        group.num_bytes += bundle.num_bytes
        if group.num_bytes >= fuse_bytes or not scheme.is_dense:
            del growing[key]
    groups.reverse()
    return tuple(sorted((_draft(group, model) for group in groups), key=lambda draft: draft.place))


@dataclass(slots=True)
class _Group:
    """Bundles that will be a unit, in forward order."""

    scheme: Scheme
    bundles: list[Bundle] = field(default_factory=list)
    num_bytes: int = 0


def _draft(group: _Group, model: CostModel) -> Draft:
    first = group.bundles[0]
    num_elems = sum(bundle.load.num_elems for bundle in group.bundles)
    load = first.load if len(group.bundles) == 1 else Load(num_elems, first.load.elem_bytes)
    params = tuple(param for bundle in group.bundles for param in bundle.params)
    return Draft(params, group.scheme, first.place, load, model.cost(group.scheme, load))


def num_pieces(draft: Draft, chunk_bytes: float) -> int:
    """Into how many pieces a unit is to be cut; one, if `chunk_bytes` is infinite."""
    number = draft.grains.number
    most = max(int(min(chunk_bytes / draft.grain_bytes, number)), 1) if draft.grain_bytes else number
    return -(-number // most)


def cut(unit: int, draft: Draft, number: int, *, in_two: bool) -> list[Piece]:
    """The pieces of a unit, first to last."""
    num_elems, grains = draft.load.num_elems, draft.grains
    bounds = [*(grains.num_elems * (grains.number * i // number) for i in range(number)), num_elems]
    pieces: list[Piece] = []
    alike: dict[int, Piece] = {}
    for start, stop in pairwise(bounds):
        like = alike.get(stop - start)
        if like is None:
            pieces.append(piece_of(Send(unit, start, stop), num_elems, draft.cost, in_two=in_two))
        else:
            pieces.append(Piece(unit, start, stop, like.push, like.pull))
        if start:  # the first may carry more than its like
            alike[stop - start] = pieces[-1]
    return pieces


def piece_of(send: Send, num_elems: int, cost: Cost, *, in_two: bool) -> Piece:
    """A send of a unit; `in_two`: what owners hand out is a leg of its own."""
    share = (send.stop - send.start) / num_elems
    once_s = cost.once_s if send.start == 0 else 0.0
    if cost.pull == Leg() or not in_two:
        return Piece(send.unit, send.start, send.stop, operation(cost.push + cost.pull, share, once_s), None)
    push, pull = operation(cost.push, share, once_s), operation(cost.pull, share)
    return Piece(send.unit, send.start, send.stop, push, pull)


def ready_order(pieces: Sequence[Sequence[Piece]], places: Sequence[int]) -> list[Piece]:
    """All pieces of all units (`pieces[unit]`, each at `places[unit]`), in backward order."""
    units = sorted(range(len(pieces)), key=lambda unit: -places[unit])
    return [piece for unit in units for piece in pieces[unit]]


def needed_order(
    pieces: Sequence[Sequence[Piece]], places: Sequence[int], ready_s: Sequence[float], traffic: Traffic
) -> list[Piece]:
    """All pieces as the link takes them: of the units that are ready, the one needed first. `ready_s` is per layer."""
    coming = sorted(range(len(pieces)), key=lambda unit: places[unit])  # the last entry becomes ready first
    waiting: list[tuple[int, int]] = []
    sent = [0] * len(pieces)
    order: list[Piece] = []
    while coming or waiting:
        now_s = traffic.next_start_s()
        if not waiting:
            now_s = max(now_s, ready_s[places[coming[-1]]])
        while coming and ready_s[places[coming[-1]]] <= now_s:
            unit = coming.pop()
            heappush(waiting, (places[unit], unit))
        unit = waiting[0][1]
        piece = pieces[unit][sent[unit]]
        sent[unit] += 1
        if sent[unit] == len(pieces[unit]):
            heappop(waiting)
        traffic.send(unit, ready_s[places[unit]], piece.push, piece.pull)
        order.append(piece)
    return order
