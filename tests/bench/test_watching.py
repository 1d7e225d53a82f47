"""The benchmark of watching runs, and leaves the solver as it was between turns; what it measures is its own affair."""

from __future__ import annotations

import argparse

from bench.watching import LIMITS, WATCHED, measure


def test_everything_that_watches_is_measured(tmp_path):
    found = measure("lenet", argparse.Namespace(turns=2, steps=2), str(tmp_path))
    assert [result.watched for result in found] == list(LIMITS) == list(WATCHED)
    for result in found:
        assert 0 < result.lowest_ratio <= result.ratio <= result.highest_ratio
        assert result.holds == (result.ratio <= result.limit)
    assert (tmp_path / "trace-1" / "trace-0.jsonl").read_text().count("\n") > 20
