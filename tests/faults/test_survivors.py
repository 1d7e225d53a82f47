"""A worker dies or hangs: every survivor ends by itself, soon, and names who was lost, on which host, at which unit.

Two hosts with two workers each, started as a scheduler would: nobody speaks for another. Workers of a host share its
memory, whatever the pattern.
"""

from __future__ import annotations

import re
import signal

import pytest

from tests.faults.survivors import HOSTS, PER_HOST, End, cut_off, lose_one

SIZE = HOSTS * PER_HOST
SOON_S = 10.0
SAMPLE = [("gpi", 1, "SIGKILL"), ("collective", SIZE - 1, "SIGSTOP")]
PATTERNS = ("collective", "gpi")
FULL = [
    (pattern, victim, name) for pattern in PATTERNS for victim in (0, 1, SIZE - 1) for name in ("SIGKILL", "SIGSTOP")
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "victim" in metafunc.fixturenames:
        cases = FULL if metafunc.config.getoption("--full") else SAMPLE
        metafunc.parametrize(("pattern", "victim", "name"), cases)
    elif "pattern" in metafunc.fixturenames:
        metafunc.parametrize("pattern", PATTERNS if metafunc.config.getoption("--full") else PATTERNS[:1])


def test_every_survivor_names_the_lost_one(pattern, victim, name, tmp_path):
    ends = lose_one(tmp_path, victim, signal.Signals[name], (f"--pattern={pattern}",))
    assert sorted(ends) == [rank for rank in range(SIZE) if rank != victim]
    for rank, end in ends.items():
        named = rf"error: rank {victim} \(host \S+-h{victim // PER_HOST}, pid {end.victim_pid}\) is lost: "
        assert_ended(rank, end, named)


def test_both_sides_of_a_cut_name_who_is_gone(pattern, tmp_path):
    ends = cut_off(tmp_path, 1, (f"--pattern={pattern}",))
    assert sorted(ends) == list(range(SIZE))
    for rank, end in ends.items():
        others = [other for other in range(SIZE) if other // PER_HOST != rank // PER_HOST]
        one = rf"rank [{others[0]}{others[-1]}] \(host \S+-h{others[0] // PER_HOST}, pid \d+\)"
        assert_ended(rank, end, rf"error: {one}(, {one})? is lost: ")


def assert_ended(rank: int, end: End, named: str) -> None:
    """By itself, in time, with the lost one's name and where it was last seen."""
    assert end.code == 3, f"rank {rank} says: {end.text}"
    assert end.seconds <= SOON_S, f"rank {rank} took {end.seconds:.1f} s and says: {end.text}"
    assert re.search(named, end.text), f"rank {rank} says: {end.text}"
    assert re.search(r"it was at clock \d+, its last unit was [A-Z_]+ \w+/0", end.text), end.text
