"""What doctor makes of facts: which links are slow, and what is wrong with a host."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from poseidon.run.doctor import Link, host_problems, slow_links
from poseidon.run.examination import _disk

GOOD: dict[str, Any] = {
    "devices": {"torch_problem": ""},
    "names": {"a": "10.0.0.1", "b": "10.0.0.2"},
    "interfaces": {"127.0.0.1": "lo", "10.0.0.1": "eth0"},
    "port": "",
    "disk": {"problem": "", "free_bytes": 1 << 40, "bps": 1e9},
}
ASKED = {"address": "10.0.0.1", "own_name": "a", "is_alone": False, "port": None}


def links(hosts: str, slow: set[str], bps: float = 1e9) -> list[Link]:
    pairs = permutations(hosts, 2)
    return [Link(*pair, 1e-4, bps / 10 if slow & set(pair) else bps) for pair in pairs]


@pytest.mark.parametrize("hosts", ["abc", "abcd", "abcde", "abcdefgh"])
def test_a_slow_host_is_named_among_any_number(hosts):
    (line,) = slow_links(links(hosts, {"b"}))
    assert line.startswith("host b has slow links: at most 100 Mbit/s, where 1 Gbit/s is usual")


def test_links_that_are_alike_are_not_slow():
    for hosts in ("ab", "abc", "abcdef"):
        assert slow_links(links(hosts, set())) == []
    varied = [Link(*pair, 1e-4, 1e9 / (1 + place % 3)) for place, pair in enumerate(permutations("abcd", 2))]
    assert slow_links(varied) == []


def test_one_slow_direction_is_named():
    found = [Link("a", "b", 1e-4, 1e9), Link("b", "a", 1e-4, 1e8)]
    (line,) = slow_links(found)
    assert line.startswith("the link from host b to host a is slow: 100 Mbit/s")


@pytest.mark.parametrize(
    ("changes", "asked", "told"),
    [
        ({}, {}, []),
        ({"names": {"a": "127.0.1.1", "b": "10.0.0.2"}}, {}, []),  # its own name, as Debian has it
        ({"names": {"b": "127.0.1.1"}}, {}, ["takes the name b of another host for itself (127.0.1.1); correct"]),
        ({"names": {"b": "::1"}}, {}, ["takes the name b of another host for itself (::1); correct"]),
        ({"names": {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1"}}, {}, []),
        (
            {},
            {"address": "192.168.0.9"},
            ["is reached at 192.168.0.9, which is on none of its interfaces (eth0 10.0.0.1)"],
        ),
        ({}, {"address": "127.0.0.1"}, ["is to be reached at 127.0.0.1, on the loopback interface"]),
        ({}, {"address": "127.0.0.1", "is_alone": True}, []),
    ],
)
def test_names_and_interfaces(changes, asked, told):
    found = list(host_problems({**GOOD, **changes}, {**ASKED, **asked}))
    assert len(found) == len(told)
    assert all(line.startswith(start) for line, start in zip(found, told, strict=True))


def test_a_missing_folder_is_not_a_full_disk(tmp_path):
    facts = {**GOOD, "disk": _disk(tmp_path / "none")}
    (line,) = host_problems(facts, ASKED)
    assert line.startswith("has no folder for snapshots: ")
    assert "make it there" in line
    (tmp_path / "file").touch()
    facts = {**GOOD, "disk": _disk(tmp_path / "file")}
    assert "make it there" in next(host_problems(facts, ASKED))
    facts = {**GOOD, "disk": _disk(Path("/proc"))}
    assert "cannot write where snapshots go" in next(host_problems(facts, ASKED))
