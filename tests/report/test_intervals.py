"""Interval arithmetic and overlap against brute force: time cut into ticks, each looked at by itself."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from poseidon.record import Event, Trace
from poseidon.report.intervals import common, length, merged, without
from poseidon.report.overlap import overlap_of, together

TICKS = 60
INTERVALS = st.lists(st.tuples(st.integers(0, TICKS), st.integers(0, TICKS)), max_size=12)


def ticks_of(intervals) -> set[int]:
    """Tick t is the time from t to t + 1."""
    return {tick for start, end in intervals for tick in range(start, end)}


def is_a_set(intervals) -> bool:
    inside = all(start < end for start, end in intervals)
    return inside and all(left[1] < right[0] for left, right in itertools.pairwise(intervals))


@given(INTERVALS, INTERVALS)
def test_sets_are_those_of_their_ticks(left, right):
    a, b = merged(left), merged(right)
    assert is_a_set(a)
    assert ticks_of(a) == ticks_of(left)
    assert length(a) == len(ticks_of(left))
    for found, expected in (
        (common(a, b), ticks_of(left) & ticks_of(right)),
        (without(a, b), ticks_of(left) - ticks_of(right)),
    ):
        assert ticks_of(found) == expected
        assert length(found) == len(expected)
        assert all(start < end for start, end in found)


def random_trace(seed: int, rank: int = 0) -> Trace:
    draw = random.Random(seed)
    events = []
    for kind in ("forward", "backward", "update", "wait", "move", "move", "move"):
        for _ in range(draw.randrange(6)):
            start = draw.randrange(TICKS)
            unit = draw.choice((None, 1))  # an update of a unit is another thread's
            events.append(Event(kind, "x", draw.randrange(3), float(start), float(draw.randrange(20)), unit=unit))
    for iteration, start in enumerate((5, 25, 50)):  # three in a row, or with the second one missing
        if iteration != 1 or seed % 2:
            events.append(Event("iteration", "", iteration, float(start), 15.0))
    events.append(Event("ready", "x", 0, 5.0))
    return Trace(rank, "h", 0.0, 0.0, 0.0, tuple(sorted(events, key=lambda event: event.start_s)))


def test_overlap_is_what_counting_ticks_gives():
    for seed in range(200):
        trace = random_trace(seed)
        counted = {"network": 0, "hidden": 0, "waited": 0, "between": 0}
        recorded = {*range(5, 50), *range(50, 65)} if seed % 2 else {*range(5, 20), *range(50, 65)}
        for tick in sorted(recorded):
            running = [e for e in trace.events if e.duration_s and e.start_s <= tick < e.start_s + e.duration_s]
            now = {e.kind for e in running if e.kind != "update" or e.unit is None}
            if "move" not in now:
                continue
            counted["network"] += 1
            stands = "wait" in now
            computes = bool(now & {"forward", "backward", "update"}) and not stands
            counted["hidden" if computes else "waited" if stands else "between"] += 1
        found = overlap_of(trace)
        assert (found.network_s, found.hidden_s, found.waited_s, found.between_s) == tuple(counted.values()), seed
        assert found.hidden_share == (counted["hidden"] / counted["network"] if counted["network"] else None)


def test_workers_are_added_up_before_dividing():
    def one(rank, network_s, hidden_s):
        return Trace(
            rank, "h", 0, 0, 0,
            (Event("move", "u", 1, 0.0, network_s), Event("backward", "l", 1, 0.0, hidden_s),
             Event("iteration", "", 1, 0.0, 10.0)),
        )  # fmt: skip

    total = together([overlap_of(one(0, 1.0, 1.0)), overlap_of(one(1, 9.0, 0.0))])
    assert total.hidden_share == 0.1
    assert total.num_iterations == 1
    assert together([]).hidden_share is None
