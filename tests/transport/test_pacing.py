"""The budget as arithmetic: with a clock that is moved by hand, against the bound a token bucket promises."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.transport.pacing import (
    BURST_S,
    MIN_PIECE_BYTES,
    URGENT_BYTES,
    WIRE_SHARE,
    Alarm,
    Budget,
    Pace,
    TokenBucket,
)


class Hand:
    """A clock that moves when somebody sleeps."""

    def __init__(self):
        self.now_s = 5.0
        self.slept_s = []

    def now(self):
        return self.now_s

    def sleep(self, seconds):
        assert seconds > 0
        self.slept_s.append(seconds)
        self.now_s += seconds


def test_a_bucket_by_hand():
    bucket = TokenBucket(bytes_per_s=100, burst_bytes=50, now_s=0)
    assert (bucket.delay(0), bucket.spare(0)) == (0, 0)
    bucket.spend(30, 0)
    assert bucket.delay(0) == pytest.approx(0.3)
    assert bucket.delay(0.25) == pytest.approx(0.05)
    assert bucket.delay(0.3) == pytest.approx(0, abs=1e-12)
    assert bucket.spare(0.5) == pytest.approx(20)
    assert bucket.spare(100) == 50  # no more than the burst is kept
    bucket.spend(70, 100)
    assert bucket.delay(100) == pytest.approx(0.2)


@given(
    st.floats(1e5, 1e9),
    st.lists(st.tuples(st.integers(URGENT_BYTES + 1, 1 << 18), st.floats(0, 0.1)), min_size=1, max_size=60),
)
def test_no_interval_moves_more_than_the_rate_the_burst_and_a_piece(limit_bps, wishes):
    """Whoever asks for what and when: in every interval, what moved keeps to the bound."""
    hand = Hand()
    budget = Budget(limit_bps, hand.now, hand.sleep)
    moved = []
    for num_bytes, pause_s in wishes:
        hand.now_s += pause_s
        budget.take(num_bytes)
        moved.append((hand.now_s, num_bytes / WIRE_SHARE))
    rate = limit_bps / 8
    burst, piece = max(rate * BURST_S, MIN_PIECE_BYTES), max(num for _, num in moved)
    for first in range(len(moved)):
        for last in range(first, len(moved)):
            seconds = moved[last][0] - moved[first][0]
            total = sum(num for _, num in moved[first : last + 1])
            assert total <= (rate * seconds + burst + piece) * (1 + 1e-9)


def test_whoever_always_has_something_to_send_uses_all_of_it():
    hand = Hand()
    budget = Budget(200e6, hand.now, hand.sleep)
    pace = Pace(200e6)
    begun_s, moved = hand.now_s, 0
    while hand.now_s < begun_s + 10:
        budget.take(pace.piece_bytes)
        moved += pace.piece_bytes
    assert moved / WIRE_SHARE * 8 / (hand.now_s - begun_s) == pytest.approx(200e6, rel=0.001)


def test_late_wakers_lose_nothing():
    """A sleep that takes 3 ms longer than asked for is made up from the burst."""
    hand = Hand()
    budget = Budget(200e6, hand.now, lambda seconds: hand.sleep(seconds + 0.003))
    piece = Pace(200e6).piece_bytes
    begun_s, moved = hand.now_s, 0
    while hand.now_s < begun_s + 10:
        budget.take(piece)
        moved += piece
    assert moved / WIRE_SHARE * 8 / (hand.now_s - begun_s) == pytest.approx(200e6, rel=0.01)


def test_urgent_messages_do_not_wait_but_count():
    hand = Hand()
    budget = Budget(8e6, hand.now, hand.sleep)  # 1 MB/s
    budget.take(1 << 20)
    debt_s = budget.delay()
    budget.take(URGENT_BYTES)
    assert hand.slept_s == []
    assert budget.delay() == pytest.approx(debt_s + URGENT_BYTES / WIRE_SHARE / 1e6)
    budget.take(URGENT_BYTES + 1)
    assert sum(hand.slept_s) == pytest.approx(debt_s + URGENT_BYTES / WIRE_SHARE / 1e6)


def test_spare_budget_is_what_nobody_has_used():
    hand = Hand()
    budget = Budget(80e6, hand.now, hand.sleep)
    assert budget.spare_bytes() == 0
    hand.now_s += 0.01
    assert budget.spare_bytes() == pytest.approx(1e5 * WIRE_SHARE, abs=1)
    budget.spend(200_000)
    assert budget.spare_bytes() == 0
    hand.now_s += 10
    assert budget.spare_bytes() == pytest.approx(1e7 * BURST_S * WIRE_SHARE, abs=1)


@pytest.mark.parametrize(("limit", "expected"), [(1e6, 16 << 10), (200e6, 125_000), (10e9, 256 << 10)])
def test_pieces_are_short(limit, expected):
    """A piece holds others up for 5 ms, where it is not as small as is sensible anyway."""
    assert Pace(limit).piece_bytes == expected


def test_alarms_ring_in_the_order_of_their_times():
    alarm, rung, over = Alarm("alarm"), [], threading.Event()
    alarm.after(0.02, lambda: (rung.append("late"), over.set()))
    alarm.after(0.0, lambda: rung.append("soon"))
    assert over.wait(10)
    alarm.close()
    assert rung == ["soon", "late"]
