"""Intervals of time and what can be asked of many at once: how long together, how much of one set lies in another.

A set is a sorted tuple of (start, end) that neither touch nor overlap; `merged` makes one from intervals in any order.

    length(A)            Σ (end − start)
    common(A, B)         A ∩ B
    without(A, B)        A \\ B

All take time linear in the number of intervals, besides the sorting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """The union as a set; what is empty or ends before it starts is nothing."""
    found: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found)


def length(of: Sequence[Interval]) -> float:
    """How long a set is in all."""
    return sum(end - start for start, end in of)


def common(left: Sequence[Interval], right: Sequence[Interval]) -> tuple[Interval, ...]:
    """What two sets have in common."""
    found = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def without(left: Sequence[Interval], right: Sequence[Interval]) -> tuple[Interval, ...]:
    """What the first set has and the second has not."""
    found = []
    j = 0
    for start, end in left:
        while j < len(right) and right[j][1] <= start:
            j += 1
        here, at = j, start
        while here < len(right) and right[here][0] < end:
            if right[here][0] > at:
                found.append((at, right[here][0]))
            at = max(at, right[here][1])
            here += 1
        if at < end:
            found.append((at, end))
    return tuple(found)
