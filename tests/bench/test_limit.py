"""The bench of bandwidth limits: what counts as kept."""

from __future__ import annotations

import pytest

from bench.limit import CASES, Result, Watch


@pytest.mark.parametrize(
    ("case", "sent", "received", "holds"),
    [
        ("ring", (0.96, 1.01), (0.96, 1.04), True),
        ("ring", (0.96, 1.06), (0.96, 1.01), False),  # more than was allowed
        ("ring", (0.96, 1.01), (0.96, 1.06), False),
        ("ring", (0.90, 1.01), (0.96, 1.02), False),  # one worker did not use what it might have
        ("gpi tree", (0.30, 0.96), (0.30, 0.60), True),  # a root has more to do than leaves
        ("gpi tree", (0.30, 0.94), (0.30, 0.94), False),
        ("ssp-push+server", (0.30, 0.99), (0.30, 0.99), True),
    ],
)
def test_verdicts(case, sent, received, holds):
    assert Result(case, 1.2, sent, received, 0.01).holds is holds


def watched(rates: list[float], step_s: float = 0.1) -> Watch:
    """Somebody who sends at such rates, one after another, and receives nothing."""
    watch, sent = Watch(), 0.0
    watch._moments = [(0.0, 0, 0)]
    for number, rate in enumerate(rates, 1):
        sent += rate * step_s
        watch._moments.append((number * step_s, round(sent), 0))
    return watch


def test_rates_are_means_and_the_most_in_any_half_second():
    sent, received, peak = watched([0] * 10 + [1000] * 5 + [0] * 10).rates(0.0, 2.5)
    assert (sent, received) == (pytest.approx(200), 0)
    assert peak == pytest.approx(1000)


def test_a_burst_shorter_than_the_window_counts_in_proportion():
    _, _, peak = watched([0] * 10 + [2500] + [0] * 10).rates(0.0, 2.1)
    assert peak == pytest.approx(500)


def test_what_was_before_and_after_does_not_count():
    _, _, peak = watched([9000] * 5 + [100] * 10 + [9000] * 5).rates(0.5, 1.5)
    assert peak == pytest.approx(100)


def test_every_mode_of_staleness_is_measured():
    assert {case.options.consistency for case in CASES.values() if case.options.staleness is not None} == {
        "ssp",
        "ssp-push",
        "ssp-managed",
    }
    assert any(case.options.servers for case in CASES.values())
