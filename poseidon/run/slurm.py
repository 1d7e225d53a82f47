"""How Slurm writes lists of hosts and of tasks per node in its variables."""

from __future__ import annotations

import re

from poseidon.errors import UsageError

MOST_HOSTS = 100_000

_BRACKETS = r"\[[^\[\]]*\]"


def expand_hosts(text: str) -> list[str]:
    """A list of hosts in full: `node[01-03,07],gpu5` is node01, node02, node03, node07, gpu5."""
    outside = re.sub(_BRACKETS, "", text)
    entries = re.findall(rf"(?:[^,\[\]]|{_BRACKETS})+", text)
    if "[" in outside or "]" in outside or len(entries) != outside.count(",") + 1:
        raise _bad_hosts(text)
    hosts: list[str] = []
    for entry in entries:
        hosts += _expand(entry.strip(), text)
        _check_count(len(hosts), text)
    return hosts


def _expand(entry: str, text: str) -> list[str]:
    """One entry, whose brackets each stand for several numbers: all combinations, the last bracket's fastest."""
    hosts = [""]
    for piece in re.findall(rf"{_BRACKETS}|[^\[\]]+", entry):
        options = _numbers(piece, text) if piece.startswith("[") else [piece]
        _check_count(len(hosts) * len(options), text)
        hosts = [host + option for host in hosts for option in options]
    if not all(re.fullmatch(r"[\w.-]+", host, re.ASCII) for host in hosts):
        raise _bad_hosts(text)
    return hosts


def _numbers(brackets: str, text: str) -> list[str]:
    """`[01-03,07]` as 01, 02, 03, 07."""
    found: list[str] = []
    for part in brackets[1:-1].split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part, re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise _bad_hosts(text)
        first, last = int(match[1]), int(match[2] or match[1])
        _check_count(last - first + 1, text)
        found += [f"{number:0{len(match[1])}}" for number in range(first, last + 1)]
    return found


def _check_count(count: int, text: str) -> None:
    if count > MOST_HOSTS:
        raise UsageError(f"expected a list of at most {MOST_HOSTS} hosts from Slurm, got {text[:200]!r}")


def _bad_hosts(text: str) -> UsageError:
    return UsageError(f"Slurm writes lists of hosts like node[01-03,07],gpu5; got {text[:200]!r}")


def tasks_per_node(text: str) -> list[int]:
    """`2(x3),1` as 2, 2, 2, 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:\(x(\d{1,6})\))?\s*", part, re.ASCII)
        if match is None or len(counts) + int(match[2] or 1) > MOST_HOSTS:
            raise UsageError(f"Slurm writes the tasks of its nodes like 2(x3),1; got {text[:200]!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
