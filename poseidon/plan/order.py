"""Order: the pieces of all units, one after another.

    READY     as gradients become final: backward order, each unit whole
    NEEDED    the link is played: whenever it can take another piece, it takes one of those ready whose layer comes
              first in the next forward pass; a unit needed sooner so overtakes the rest of a bulky one

There is one order for all workers, made beforehand.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from heapq import heappop, heappush

from poseidon.plan.drafts import Piece
from poseidon.plan.traffic import Traffic


class Order(enum.Enum):
    READY = "ready"
    NEEDED = "needed"


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
