"""Where the cards of a graph go: in layers from top to bottom, without overlaps, edges short and mostly straight.

Sugiyama's way, in four steps:

    level      a card stands below everything it reads: its level is the longest path to it
    bends      an edge that passes levels gets a bend on each, so that it goes around cards
    order      on each level cards and bends are sorted by the mean place of their neighbours, down and up a few times
    places     each is moved towards its neighbours as far as those beside it allow

Edges must point from lower to higher numbers of cards.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

GAP, BEND_WIDTH, LEVEL_GAP = 28.0, 14.0, 46.0
_SWEEPS = 8


@dataclass(frozen=True, slots=True)
class Size:
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Place:
    """A card's centre (x) and top (y)."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Placed:
    """Places of cards by number, for each edge the points it passes, and the extents of all."""

    cards: tuple[Place, ...]
    routes: tuple[tuple[Place, ...], ...]
    width: float
    height: float


@dataclass(slots=True)
class _Node:
    """A card or a bend. `above`, `below`: its neighbours."""

    width: float
    level: int
    x: float = 0.0
    above: list[_Node] = field(default_factory=list)
    below: list[_Node] = field(default_factory=list)


def place_cards(sizes: Sequence[Size], edges: Sequence[tuple[int, int]]) -> Placed:
    """Lays out the graph."""
    if not sizes:
        return Placed((), (), 0.0, 0.0)
    levels = _levels(len(sizes), edges)
    nodes = [_Node(size.width, level) for size, level in zip(sizes, levels, strict=True)]
    chains = [_chain(nodes[start], nodes[end]) for start, end in edges]
    rows: list[list[_Node]] = [[] for _ in range(max(levels) + 1)]
    for node in [*nodes, *(bend for chain in chains for bend in chain[1:-1])]:
        rows[node.level].append(node)
    _set_side_by_side(rows)
    _order(rows)
    _straighten(rows)
    heights = [0.0] * len(rows)
    for size, level in zip(sizes, levels, strict=True):
        heights[level] = max(heights[level], size.height)
    tops = [sum(heights[:row]) + row * LEVEL_GAP for row in range(len(rows))]
    left = min(node.x - node.width / 2 for row in rows for node in row)
    right = max(node.x + node.width / 2 for row in rows for node in row)
    places = tuple(Place(node.x - left, tops[node.level]) for node in nodes)
    routes = []
    for chain, (start, _) in zip(chains, edges, strict=True):
        # A bend leads straight down beside the cards of its level.
        points = [(node, y) for node in chain[1:-1] for y in (tops[node.level], tops[node.level] + heights[node.level])]
        points = [(chain[0], tops[chain[0].level] + sizes[start].height), *points, (chain[-1], tops[chain[-1].level])]
        routes.append(tuple(Place(node.x - left, y) for node, y in points))
    return Placed(places, tuple(routes), right - left, tops[-1] + heights[-1])


def _levels(number: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    levels = [0] * number
    for start, end in sorted(edges, key=lambda edge: edge[1]):
        assert start < end, "an edge points to a later card"
        levels[end] = max(levels[end], levels[start] + 1)
    return levels


def _chain(start: _Node, end: _Node) -> list[_Node]:
    """Both ends of an edge with the bends between them, each made a neighbour of the next."""
    chain = [start, *(_Node(BEND_WIDTH, level) for level in range(start.level + 1, end.level)), end]
    for upper, lower in itertools.pairwise(chain):
        upper.below.append(lower)
        lower.above.append(upper)
    return chain


def _set_side_by_side(rows: Sequence[list[_Node]]) -> None:
    for row in rows:
        x = 0.0
        for node in row:
            node.x = x + node.width / 2
            x += node.width + GAP


def _order(rows: Sequence[list[_Node]]) -> None:
    """Fewer crossings: sorts rows by where neighbours stand, which is then true for the next row."""
    for sweep in range(_SWEEPS):
        is_down = sweep % 2 == 0
        for row in rows if is_down else reversed(rows):
            wishes = {id(node): _wish(node.above if is_down else node.below, node.x) for node in row}
            row.sort(key=lambda node: wishes[id(node)])
            _set_side_by_side([row])


def _straighten(rows: Sequence[list[_Node]]) -> None:
    for sweep in range(2 * _SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wishes = [_wish(node.above if sweep % 2 == 0 else node.below, node.x) for node in row]
            _move(row, wishes)


def _wish(neighbours: Sequence[_Node], otherwise: float) -> float:
    return sum(node.x for node in neighbours) / len(neighbours) if neighbours else otherwise


def _move(row: Sequence[_Node], wishes: Sequence[float]) -> None:
    """Places of a row, in its order, that are nearest to the wishes: blocks of nodes that touch move as one.

    (Least squares under an order with distances: pooling of adjacent violators.)
    """
    offsets, x = [], 0.0
    for before, node in zip([None, *row], row, strict=False):
        x += (before.width + node.width) / 2 + GAP if before is not None else 0.0
        offsets.append(x)
    blocks: list[tuple[float, int]] = []  # mean wish of a block's first place, number of nodes
    for wish, offset in zip(wishes, offsets, strict=True):
        mean, count = wish - offset, 1
        while blocks and blocks[-1][0] > mean:
            other, others = blocks.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        blocks.append((mean, count))
    firsts = [mean for mean, count in blocks for _ in range(count)]
    for node, first, offset in zip(row, firsts, offsets, strict=True):
        node.x = first + offset
