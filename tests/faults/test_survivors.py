"""A worker dies or hangs: every survivor ends by itself, soon, and names who was lost, on which host, at which unit.

Two hosts with two workers each, started as a scheduler would: nobody speaks for another. Workers of a host share its
memory, whatever the pattern.
"""

from __future__ import annotations

import re
import signal

import pytest

from tests.faults.survivors import HOSTS, PER_HOST, lose_one

SIZE = HOSTS * PER_HOST
SAMPLE = [("gpi", 1, "SIGKILL")]
FULL = [
    (pattern, victim, name)
    for pattern in ("collective", "gpi")
    for victim in (0, 1, SIZE - 1)
    for name in ("SIGKILL", "SIGSTOP")
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "victim" in metafunc.fixturenames:
        cases = FULL if metafunc.config.getoption("--full") else SAMPLE
        metafunc.parametrize(("pattern", "victim", "name"), cases)


def test_every_survivor_names_the_lost_one(pattern, victim, name, tmp_path):
    ends = lose_one(tmp_path, victim, signal.Signals[name], (f"--pattern={pattern}",))
    assert sorted(ends) == [rank for rank in range(SIZE) if rank != victim]
    for rank, end in ends.items():
        assert end.code == 3, f"rank {rank} says: {end.text}"
        named = rf"error: rank {victim} \(host \S+-h{victim // PER_HOST}, pid {end.victim_pid}\) is lost: "
        assert re.search(named, end.text), f"rank {rank} says: {end.text}"
        assert re.search(r"it was at clock \d+, its last unit was [A-Z_]+ \w+/0", end.text), end.text
