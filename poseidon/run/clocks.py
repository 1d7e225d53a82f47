"""Clocks: how much the workers' clocks differ from rank 0's, as NTP finds it out.

A worker notes the time a, asks rank 0 for its time r, and notes the time b when the answer is here. Rank 0 has looked
at its clock somewhere in between: when the worker's stood at (a + b) / 2, to within (b − a) / 2, whatever the network
did. Of several such questions the one with the quickest answer counts.

Monotonic clocks of one kernel are the same clock: workers of one host differ by nothing.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from poseidon.run.roundtable import Roundtable

NUM_QUESTIONS = 16


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What to add to this worker's time to get rank 0's, and how far that may be off."""

    offset_s: float = 0.0
    uncertainty_s: float = 0.0


def compare_clocks(table: Roundtable, now: Callable[[], float], clock: str | None = None) -> ClockOffset:
    """All workers call it together. `clock` names what `now` reads: workers that name the same one are not asked."""
    clocks = table.gather_texts(clock_name() if clock is None else clock)
    others = [rank for rank, name in enumerate(clocks) if name != clocks[0]]
    if table.rank == 0:
        for rank in others:
            for _ in range(NUM_QUESTIONS):
                table.hear(torch.empty(1, dtype=torch.float64), rank)
                table.tell(torch.tensor([now()], dtype=torch.float64), rank)
    if table.rank not in others:
        return ClockOffset()
    return min((_ask(table, now) for _ in range(NUM_QUESTIONS)), key=lambda found: found.uncertainty_s)


def _ask(table: Roundtable, now: Callable[[], float]) -> ClockOffset:
    answer = torch.empty(1, dtype=torch.float64)
    asked_s = now()
    table.tell(torch.zeros(1, dtype=torch.float64), 0)
    table.hear(answer, 0)
    heard_s = now()
    return ClockOffset(float(answer) - (asked_s + heard_s) / 2, (heard_s - asked_s) / 2)


def clock_name() -> str:
    """The kernel's monotonic clock: one for each start of a machine and each of its time namespaces."""
    found = [platform.node(), str(os.getpid())]  # where the kernel tells nothing, nobody shares a clock
    with contextlib.suppress(OSError):
        found = [Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
        found.append(os.readlink("/proc/self/ns/time"))
    return " ".join(found)
