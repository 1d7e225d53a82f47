"""Two files compared part by part, whatever their formats: the same layers, the same shapes, the same values?

Parts go by name; within a part arrays go by name too, or by position where the two files name them differently (blob 0
of a caffemodel is `weight` elsewhere). Options are compared only where both files have them, and so are values: of a
net's text, say, the shapes are held against those of a caffemodel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from poseidon.inspect.contents import Array, Contents, Part
from poseidon.inspect.statistics import MAX_BYTES
from poseidon.net.layer import text_of


class Verdict(Enum):
    SAME = "same"
    VALUES = "values differ"
    SHAPES = "shapes differ"
    OPTIONS = "options differ"
    ONLY_FIRST = "only in the first"
    ONLY_SECOND = "only in the second"
    UNREAD = "not compared"


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one array, or of a part as a whole. `largest` is the largest |a − b|, `relative` that over the largest |a|."""

    part: str
    array: str
    verdict: Verdict
    note: str = ""
    largest: float | None = None
    relative: float | None = None


def compare(first: Contents, second: Contents) -> list[Difference]:
    """One entry for each part without arrays and each array, in the order of the first file."""
    # A format without layer types knows only what has values: the rest of the other file says nothing about it.
    typed = all(any(part.kind for part in contents.parts) for contents in (first, second))
    ours, theirs = (_by_name(contents, with_empty=typed) for contents in (first, second))
    found: list[Difference] = []
    # The text of a net that could not be built has no arrays at all.
    has_arrays = all(any(part.arrays for part in contents.parts) for contents in (first, second))
    for name, part in ours.items():
        other = theirs.get(name)
        if other is None:
            found.append(_alone(part, Verdict.ONLY_FIRST))
        else:
            found += _of_parts(part, other, with_arrays=has_arrays)
    found += [_alone(part, Verdict.ONLY_SECOND) for name, part in theirs.items() if name not in ours]
    return found


def _by_name(contents: Contents, *, with_empty: bool) -> dict[tuple[str, int], Part]:
    """Parts by name, and by their turn where several have one name: as the data layers of both phases do."""
    found: dict[tuple[str, int], Part] = {}
    turns: Counter[str] = Counter()
    for part in contents.parts:
        if part.arrays or with_empty:
            found[part.name, turns[part.name]] = part
            turns[part.name] += 1
    return found


def _alone(part: Part, verdict: Verdict) -> Difference:
    return Difference(part.name, "", verdict, f"{part.kind} {len(part.arrays)} array(s)".strip())


def _of_parts(part: Part, other: Part, *, with_arrays: bool) -> list[Difference]:
    found = []
    if part.kind and other.kind and part.kind != other.kind:
        found.append(Difference(part.name, "", Verdict.OPTIONS, f"{part.kind}, {other.kind}"))
    elif part.options and other.options and part.options != other.options:
        found.append(Difference(part.name, "", Verdict.OPTIONS, _first_change(part.options, other.options)))
    for name, mine, theirs in _pairs(part.arrays, other.arrays) if with_arrays else ():
        if theirs is None or mine is None:
            verdict = Verdict.ONLY_FIRST if theirs is None else Verdict.ONLY_SECOND
            found.append(Difference(part.name, name, verdict))
        else:
            found.append(_of_arrays(part.name, name, mine, theirs))
    return found or [Difference(part.name, "", Verdict.SAME)]


def _pairs(ours: tuple[Array, ...], theirs: tuple[Array, ...]) -> Iterator[tuple[str, Array | None, Array | None]]:
    mine, others = {array.name: array for array in ours}, {array.name: array for array in theirs}
    if len(ours) == len(theirs) and not set(mine) & set(others):
        yield from ((a.name, a, b) for a, b in zip(ours, theirs, strict=True))
        return
    for name in [*mine, *(name for name in others if name not in mine)]:
        yield name, mine.get(name), others.get(name)


def _of_arrays(part: str, name: str, mine: Array, theirs: Array) -> Difference:
    shapes = [mine.shape, theirs.shape]
    # Old blobs have ones in front: they fit, as they do when weights are loaded.
    bare = [tuple(n for n in shape if n != 1) for shape in shapes]
    if bare[0] != bare[1]:
        return Difference(part, name, Verdict.SHAPES, f"{text_of(shapes[0])}, {text_of(shapes[1])}")
    if mine.read is None or theirs.read is None:
        return Difference(part, name, Verdict.SAME, f"{text_of(mine.shape)}, the shape only")
    if max(mine.num_bytes, theirs.num_bytes) > MAX_BYTES:
        return Difference(part, name, Verdict.UNREAD, f"{text_of(mine.shape)}, too large")
    a, b = (read().astype(np.float64).reshape(-1) for read in (mine.read, theirs.read))
    with np.errstate(invalid="ignore"):
        gap = np.abs(a - b)
    gap[(a == b) | (np.isnan(a) & np.isnan(b))] = 0
    largest = float(gap.max(initial=0)) if not np.isnan(gap).any() else float("inf")
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0))
    relative = largest / scale if scale else largest
    verdict = Verdict.VALUES if largest else Verdict.SAME
    return Difference(part, name, verdict, text_of(mine.shape), largest, relative)


def _first_change(mine: str, theirs: str) -> str:
    """The first lines that differ, side by side."""
    ours, others = mine.split("\n"), theirs.split("\n")
    for a, b in zip(ours, others, strict=False):
        if a != b:
            return f"{a.strip() or 'nothing'}, {b.strip() or 'nothing'}"
    return "one says more"
