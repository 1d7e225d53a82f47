"""Trial: a candidate for a plan that was played, and what makes it better than another."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from poseidon.plan.commplan import Scheme
from poseidon.plan.drafts import Draft, Piece
from poseidon.plan.order import Order

Schemes = tuple[Scheme, ...]
"""One scheme per bundle."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How units are fused, cut and ordered."""

    fuse_bytes: float
    chunk_bytes: float
    order: Order


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """What makes one candidate better than another, field by field; seconds to the picosecond, below which is noise."""

    iteration_s: float
    network_s: float
    num_sends: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that was played."""

    schemes: Schemes
    layout: Layout
    drafts: tuple[Draft, ...]
    order: list[Piece]
    iteration_s: float
    rank: Rank

    @property
    def num_sends(self) -> tuple[int, ...]:
        """By unit."""
        counts = Counter(piece.unit for piece in self.order)
        return tuple(counts[unit] for unit in range(len(self.drafts)))
