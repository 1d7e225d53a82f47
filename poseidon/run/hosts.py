"""Hosts: which machines a job runs on, and how many workers on each.

    --hosts a,b:2,user@c              names, with the number of workers after a colon; IPv6 as [fe80::1]:2
    --hostfile F                      one host a line, in one of these forms; # begins a comment
        0 10.0.0.1 9999               PMLS and Bösen: id, address, port; ids are 0, 1, …; workers meet at the port of 0
        a slots=2 max_slots=4         Open MPI; `a:2` as MPICH writes it
        a                             one worker

A host that is named again gets more workers. Ranks count through the hosts in the order in which they are named first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from poseidon.errors import UsageError

MOST_SLOTS = 4096
# ssh takes a name that begins with a dash for an option of its own.
_NAME = re.compile(r"(?:[A-Za-z0-9_.-]+@)?(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.%A-Za-z0-9]+\])", re.ASCII)
_SLOTS = re.compile(r"(slots|max_slots|max-slots)=(\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Host:
    """`name` is what ssh is told, with a user if one was given; `port` is where workers meet, if that was said."""

    name: str
    slots: int = 1
    port: int | None = None

    @property
    def address(self) -> str:
        """The name without user and brackets."""
        return self.name.rpartition("@")[2].strip("[]")


def parse_hosts(text: str) -> list[Host]:
    """What `--hosts` says."""
    entries = [entry.strip() for entry in text.split(",")]
    return _merged(_entry(entry, f"--hosts={text}") for entry in entries if entry) or _none(f"--hosts={text}")


def read_hostfile(path: str) -> list[Host]:
    """What a hostfile says."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"--hostfile={path}: cannot be read: {problem}") from None
    lines = [(number, line.partition("#")[0].split()) for number, line in enumerate(text.splitlines(), 1)]
    filled = [(f"{path}:{number}", words) for number, words in lines if words]
    if filled and all(_is_pmls(words) for _, words in filled):
        return _pmls(filled)
    return _merged(_line(words, where) for where, words in filled) or _none(path)


def num_workers(hosts: Sequence[Host]) -> int:
    return sum(host.slots for host in hosts)


def _none(where: str) -> list[Host]:
    raise UsageError(f"{where}: there is no host in it; name at least one")


def _is_pmls(words: Sequence[str]) -> bool:
    return len(words) == 3 and words[0].isdecimal() and words[2].isdecimal()


def _pmls(filled: Sequence[tuple[str, list[str]]]) -> list[Host]:
    by_id: dict[int, Host] = {}
    for where, (number, address, port) in filled:
        if int(number) in by_id:
            raise UsageError(f"{where}: id {number} was given before; ids are 0, 1, …, one for each line")
        if not 1 <= int(port) <= 65535:
            raise UsageError(f"{where}: a port is within 1 … 65535, got {port}")
        by_id[int(number)] = replace(_entry(address, where), port=int(port))
    if sorted(by_id) != list(range(len(by_id))):
        raise UsageError(f"{filled[0][0].rpartition(':')[0]}: ids are 0 … {len(by_id) - 1}, got {sorted(by_id)}")
    return _merged(by_id[number] for number in range(len(by_id)))


def _line(words: Sequence[str], where: str) -> Host:
    host = _entry(words[0], where)
    for word in words[1:]:
        match = _SLOTS.fullmatch(word)
        if match is None:
            raise UsageError(
                f"{where}: expected `host`, `host slots=n` or, in all lines, `id address port`, got {' '.join(words)!r}"
            )
        if match[1] == "slots":
            host = _with_slots(host, match[2], where)
    return host


def _entry(text: str, where: str) -> Host:
    """`a`, `user@a:2`, `[::1]:2`; an IPv6 address without brackets is a name with many colons."""
    if text.count(":") > 1 and "[" not in text:
        user, at, address = text.rpartition("@")
        text = f"{user}{at}[{address}]"
    name, colon, slots = text.rpartition(":") if re.search(r":\d+$", text) else (text, "", "")
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where}: {text!r} is no name of a host; expected one like node1, node1:2 or user@10.0.0.1")
    return _with_slots(Host(name), slots, where) if colon else Host(name)


def _with_slots(host: Host, text: str, where: str) -> Host:
    if not 1 <= int(text) <= MOST_SLOTS:
        raise UsageError(f"{where}: {host.name} is to have 1 … {MOST_SLOTS} workers, got {text}")
    return replace(host, slots=int(text))


def _merged(hosts: Iterable[Host]) -> list[Host]:
    found: dict[str, Host] = {}
    for host in hosts:
        known = found.get(host.name)
        found[host.name] = host if known is None else replace(known, slots=known.slots + host.slots)
    return list(found.values())
