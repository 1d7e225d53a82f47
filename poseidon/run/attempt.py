"""Attempts: what may fail on some workers and not on others, tried by all at once; nobody goes on unless it worked.

Without this a worker whose file is missing would leave the others waiting for it, and a mistake that all make alike (a
wrong prototxt) would be reported as often as there are workers, in the words of whoever noticed first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from poseidon.errors import PoseidonError, WorkersFailed
from poseidon.run.replicas import groups_of, workers_text
from poseidon.run.roundtable import Roundtable

T = TypeVar("T")


def attempt(table: Roundtable, act: Callable[[], T], *, by: int | None = None) -> T | None:
    """What `act` gives on this worker; None where only rank `by` is to act, and this is another.

    If it raises on any worker, all raise the same WorkersFailed: the problem, and on which ranks and hosts. What all
    who acted have in common is told as it is.
    """
    result, problem = None, ""
    if by in (None, table.rank):
        try:
            result = act()
        except PoseidonError as error:
            problem = str(error) or type(error).__name__
    problems = table.gather_texts(problem)
    failed = tuple(rank for rank, text in enumerate(problems) if text)
    if not failed:
        return result
    acting = range(table.size) if by is None else (by,)
    if len({problems[rank] for rank in acting}) == 1:
        raise WorkersFailed(problems[failed[0]], failed)
    told = (
        f"{workers_text(group, table)}: {problems[group[0]]}" for group in groups_of(problems) if problems[group[0]]
    )
    raise WorkersFailed("; ".join(told), failed)
