"""Drafts: units in the making. Small bundles are fused, large units are cut.

Fusing: dense bundles of one scheme and element size, neighbours among their like, are put together in backward order
until a unit has at least `fuse_bytes`. So a small bias or Scale goes with what becomes ready next to it, and the first
layers' unit, which nobody can hide, is what is left over: small. Small factors are put together likewise where they
have as many rows, side by side in each; of these, and where units are cut, what they send counts half, as a dense
unit's bytes cross the link twice.

Cutting: a unit above `chunk_bytes` becomes the fewest pieces of nearly equal length that are not above it. FACTORS are
cut into rows. FACTOR_SERVER is cut into slabs of whole slices of the larger dimension; the factor that every owner
needs whole goes with the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from poseidon.plan.bundles import Bundle
from poseidon.plan.commplan import Scheme, Send, row_grains
from poseidon.plan.cost import Cost, CostModel, Leg, Load
from poseidon.plan.link import Operation, operation
from poseidon.plan.profile import ParamProfile

# Factors above this are sent by themselves: what large ones gain by one message less, they lose because all of them are
# rebuilt together (AlexNet on 8 hosts with 1 Gbit/s: 0.57 to 0.61 s instead of 0.54).
SMALL_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Grains:
    """So many grains, of so many elements each; what does not fill a grain goes with the last."""

    number: int
    num_elems: int


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A unit in the making; `Drafts` makes each once. `place` is the layer at which it becomes ready, and is needed."""

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


class Drafts:
    """Makes units of bundles, and pieces of units. A search asks for the same ones over and over: they are kept.

    `in_two`: what owners hand out is a leg of its own. `fuses_factors`: the runtime takes several weights' in one unit.
    """

    def __init__(self, bundles: Sequence[Bundle], model: CostModel, *, in_two: bool, fuses_factors: bool) -> None:
        self._bundles, self._model, self._in_two = bundles, model, in_two
        self._fuses_factors = fuses_factors
        self._made: dict[tuple[Scheme, tuple[int, ...]], Draft] = {}
        self._counts: dict[tuple[Draft, float], int] = {}
        self._pieces: dict[tuple[Draft, int, int], list[Piece]] = {}

    def fused(self, schemes: Sequence[Scheme], fuse_bytes: float) -> tuple[Draft, ...]:
        """The units of a net in forward order, given each bundle's scheme."""
        groups: list[_Group] = []
        growing: dict[tuple[Scheme, int, int], _Group] = {}
        for index in reversed(range(len(self._bundles))):
            bundle, scheme = self._bundles[index], schemes[index]
            is_factors = scheme is Scheme.FACTORS and self.may_join(bundle)
            key = (scheme, bundle.load.elem_bytes, bundle.load.num_rows if is_factors else 0)
            group = growing.get(key)
            if group is None:
                group = _Group(scheme)
                groups.append(group)
                growing[key] = group
            group.indices.append(index)
            group.num_bytes += self._factor_bytes(bundle) if is_factors else bundle.num_bytes
            if group.num_bytes >= fuse_bytes or not (scheme.is_dense or is_factors):
                del growing[key]
        groups.reverse()
        return tuple(sorted(map(self._draft, groups), key=lambda draft: draft.place))

    def may_join(self, bundle: Bundle) -> bool:
        """Whether its factors travel with those of others."""
        return self._fuses_factors and self._factor_bytes(bundle) <= SMALL_BYTES

    def _factor_bytes(self, bundle: Bundle) -> float:
        return self._model.cost(Scheme.FACTORS, bundle.load).bytes_sent / 2

    def num_pieces(self, draft: Draft, chunk_bytes: float) -> int:
        found = self._counts.get((draft, chunk_bytes))
        if found is None:
            found = self._counts[draft, chunk_bytes] = num_pieces(draft, chunk_bytes)
        return found

    def pieces(self, draft: Draft, unit: int, number: int) -> list[Piece]:
        """Of a draft that is to be this unit, cut into so many."""
        found = self._pieces.get((draft, unit, number))
        if found is None:
            found = self._pieces[draft, unit, number] = cut(unit, draft, number, in_two=self._in_two)
        return found

    def _draft(self, group: _Group) -> Draft:
        key = (group.scheme, tuple(group.indices))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._make(group.scheme, [self._bundles[i] for i in reversed(group.indices)])
        return found

    def _make(self, scheme: Scheme, bundles: Sequence[Bundle]) -> Draft:
        first = bundles[0]
        num_elems = sum(bundle.load.num_elems for bundle in bundles)
        shapes = tuple(shape for bundle in bundles for shape in bundle.load.factors)
        together = Load(num_elems, first.load.elem_bytes, shapes if scheme is Scheme.FACTORS else ())
        load = first.load if len(bundles) == 1 else together
        params = tuple(param for bundle in bundles for param in bundle.params)
        return Draft(params, scheme, first.place, load, self._model.cost(scheme, load))


@dataclass(slots=True)
class _Group:
    """Bundles that will be a unit, in backward order."""

    scheme: Scheme
    indices: list[int] = field(default_factory=list)
    num_bytes: float = 0


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
