"""The bench of bandwidth limits: what counts as kept."""

from __future__ import annotations

import pytest

from bench.limit import CASES, Result, Watch


@pytest.mark.parametrize(
    ("case", "sent", "received", "holds"),
    [
        ("ring", (0.96, 1.01), (0.96, 1.02), True),
        ("ring", (0.96, 1.06), (0.96, 1.02), False),  # more than was allowed
        ("ring", (0.96, 1.01), (0.96, 1.06), False),
        ("ring", (0.90, 1.01), (0.96, 1.02), False),  # one worker did not use what it might have
        ("gpi tree", (0.30, 1.01), (0.30, 1.00), True),  # a root has more to do than leaves
        ("gpi tree", (0.30, 0.90), (0.30, 0.90), False),
        ("ssp-push+server", (0.30, 0.99), (0.30, 0.99), True),
    ],
)
def test_verdicts(case, sent, received, holds):
    assert Result(case, sent, received, 0.01).holds is holds


def test_rates_are_those_between_two_moments():
    watch = Watch()
    watch._moments = [(0.0, 0, 0), (1.0, 900, 9), (2.0, 1000, 10), (3.0, 1400, 12), (4.0, 9000, 99)]
    assert watch.rates(0.5, 3.5) == [(1400 - 900) / 2, (12 - 9) / 2]


def test_every_mode_of_staleness_is_measured():
    assert {case.options.consistency for case in CASES.values() if case.options.staleness is not None} == {
        "ssp",
        "ssp-push",
        "ssp-managed",
    }
    assert any(case.options.servers for case in CASES.values())
