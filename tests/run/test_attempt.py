"""What all workers try at once, and how a failure on some of them is told to all."""

from __future__ import annotations

import socket

import pytest

from poseidon.errors import DataError, UsageError, WorkersFailed
from poseidon.run.attempt import attempt
from poseidon.run.roundtable import Roundtable
from poseidon.transport.inproc import run_workers

HOST = socket.gethostname()


def told(act, by: int | None = None) -> list[tuple[str, tuple[int, ...]]]:
    """What each of three workers is told when `act(rank)` is tried."""

    def work(transport):
        table = Roundtable(transport)
        with pytest.raises(WorkersFailed) as caught:
            attempt(table, lambda: act(transport.rank), by=by)
        return str(caught.value), caught.value.ranks

    return run_workers(3, work)


def test_what_works_everywhere_is_returned_on_each():
    assert run_workers(3, lambda transport: attempt(Roundtable(transport), lambda: transport.rank + 10)) == [10, 11, 12]


def test_only_one_may_act():
    results = run_workers(3, lambda transport: attempt(Roundtable(transport), lambda: transport.rank + 10, by=1))
    assert results == [None, 11, None]


def test_a_mistake_that_all_make_is_told_as_it_is():
    def act(rank):
        raise UsageError("no such file")

    assert told(act) == [("no such file", (0, 1, 2))] * 3
    assert told(act, by=0) == [("no such file", (0,))] * 3


def test_what_fails_on_some_is_told_with_their_ranks_and_hosts():
    def act(rank):
        if rank > 0:
            raise DataError("cannot be read")

    assert told(act) == [(f"ranks 1 and 2 (host {HOST}): cannot be read", (1, 2))] * 3


def test_different_failures_are_all_told():
    def act(rank):
        if rank != 1:
            raise DataError(f"record {rank} is damaged")

    expected = f"rank 0 (host {HOST}): record 0 is damaged; rank 2 (host {HOST}): record 2 is damaged"
    assert told(act) == [(expected, (0, 2))] * 3


def test_an_error_without_words_is_no_success():
    def act(rank):
        raise UsageError

    assert told(act) == [("UsageError", (0, 1, 2))] * 3


def test_other_exceptions_are_not_for_users():
    def work(transport):
        attempt(Roundtable(transport), lambda: {}[transport.rank])

    with pytest.raises(KeyError):
        run_workers(2, work)
