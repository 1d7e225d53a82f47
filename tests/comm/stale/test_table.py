"""poseidon.Table: what a read contains, checked on every read; nothing lost, nothing twice; who stops where.

The oracle counts. Column w of a table is worker w's: it adds 1 there in every clock. What is read there is then the
number of its updates that are in, and the condition is arithmetic:

    s-bound       at clock c every column is at least c − s
    own writes    one's own is c
    others        never ahead of what they have finished: at most c + s + 1
"""

from __future__ import annotations

import threading

import pytest
import torch

from poseidon.errors import PeerLost, UsageError, WorkersDiffer
from poseidon.run.tables import Tables
from poseidon.transport.onesided.inproc import Tricks
from tests.comm.stale.kit import MODES, Straggler, drained, with_tables
from tests.transport.onesided.ends import KINDS

ROWS = 23


def count_reads(
    size: int, staleness: int, consistency: str, *, sparse: bool, seed: int, clocks: int = 12, **how
) -> list[int]:
    """Checks every read of every worker; the largest staleness that each has seen."""

    def act(tables: Tables) -> int:
        rank, seen = tables.rank, 0
        straggler = Straggler(seed, rank)
        table = tables.create(
            "counts", rows=ROWS, width=size, staleness=staleness, consistency=consistency, sparse=sparse
        )
        one = torch.zeros(ROWS, size)
        one[:, rank] = 1.0
        wanted = torch.arange(rank % 3, ROWS, 2)
        for clock in range(clocks):
            straggler.compute()
            counts = table.get(wanted if sparse else None)
            assert counts[:, rank].eq(clock).all(), "a worker reads its own writes"
            assert counts.min() >= clock - staleness, "never staler than s"
            assert counts.max() <= clock + staleness + 1, "nobody can be further ahead"
            if consistency != "ssp-managed":
                versions = {tuple(row) for row in _without(counts, rank).tolist()}
                assert all(len(set(row)) <= 1 for row in versions), "whole clocks only"
            seen = max(seen, clock - int(_without(counts, rank).min()) if size > 1 else 0)
            table.inc(one)
            table.clock()
        assert drained(table).eq(clocks).all(), "in the end everybody has everything, once"
        return seen

    return with_tables(size, act, **how)


def _without(counts: torch.Tensor, rank: int) -> torch.Tensor:
    return torch.cat((counts[:, :rank], counts[:, rank + 1 :]), 1)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("consistency", MODES)
@pytest.mark.parametrize(("size", "staleness"), [(1, 0), (2, 0), (3, 1), (4, 3), (16, 2)])
def test_every_read_keeps_the_bound(size, staleness, consistency, sparse):
    clocks = 12 if size < 16 else 5
    seen = count_reads(size, staleness, consistency, sparse=sparse, seed=size, clocks=clocks, tricks=Tricks(seed=size))
    assert max(seen) <= staleness


@pytest.mark.parametrize("seed", range(6))
def test_stragglers_are_run_ahead_of(seed):
    count_reads(5, 2, "ssp-push", sparse=bool(seed % 2), seed=seed, clocks=25)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("consistency", MODES)
def test_whatever_carries_it(kind, consistency):
    count_reads(3, 1, consistency, sparse=False, seed=1, kind=kind)
    count_reads(3, 1, consistency, sparse=True, seed=2, kind=kind)


@pytest.mark.parametrize("consistency", MODES)
def test_servers_of_their_own(consistency):
    count_reads(3, 1, consistency, sparse=False, seed=1, servers=2)
    count_reads(2, 0, consistency, sparse=True, seed=2, servers=1, tricks=Tricks(seed=5))


@pytest.mark.parametrize("consistency", MODES)
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_with_one_worker_paused_the_others_run_on_and_stop_exactly_at_the_bound(staleness, consistency):
    """Worker 0 stops with clock 2. The others read at 2 + s, not at 3 + s, until it goes on."""
    size, paused_at = 4, 2
    last = paused_at + staleness
    at_bound = threading.Semaphore(0)
    goes_on = threading.Event()

    def act(tables: Tables) -> int:
        table = tables.create("t", rows=5, width=2, staleness=staleness, consistency=consistency)
        for clock in range(last + 2):
            if tables.rank == 0 and clock == paused_at:
                for _ in range(size - 1):
                    at_bound.acquire()
                for _ in range(200):  # a word with the others' servers and back: time enough for a wrong read to return
                    tables._hub.call(lambda: None)
                goes_on.set()
            table.get()
            if tables.rank != 0:
                assert clock <= last or goes_on.is_set(), "a read beyond the bound has returned"
            table.inc(torch.ones(5, 2))
            table.clock()
            if tables.rank != 0 and table.now == last + 1:
                assert not goes_on.is_set(), "up to the bound nobody waits for the paused one"
                at_bound.release()
        return table.now

    assert with_tables(size, act) == [last + 2] * size


def test_with_staleness_0_all_read_the_same_bits():
    def act(tables: Tables) -> list[torch.Tensor]:
        table = tables.create("sum", rows=300, width=400, start=torch.full((300, 400), 0.1))
        found = []
        for clock in range(4):
            found.append(table.get())
            values = torch.randn(300, 400, generator=torch.Generator().manual_seed(7 * clock + tables.rank))
            table.inc(1e-3 * values)
            table.clock()
        return [*found, drained(table)]

    by_rank = with_tables(4, act, tricks=Tricks(seed=3))
    expected = torch.full((300, 400), 0.1)
    for clock in range(5):
        assert all(torch.equal(found[clock], by_rank[0][clock]) for found in by_rank)
        assert torch.equal(by_rank[0][clock], expected)
        total = torch.zeros(300, 400)
        for rank in range(4):  # in the order of workers, then onto the values
            values = torch.randn(300, 400, generator=torch.Generator().manual_seed(7 * clock + rank))
            total += 1e-3 * values
        expected = expected + total


@pytest.mark.parametrize("consistency", MODES)
def test_updates_of_some_rows_and_single_elements(consistency):
    """Rows that stand twice, rows nobody touches, single elements: the ledger is a plain sum of everybody's deltas."""
    size, rows, width = 3, 41, 7

    def act(tables: Tables) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(tables.rank)
        table = tables.create("t", rows=rows, width=width, staleness=2, consistency=consistency, sparse=True)
        made = torch.zeros(rows, width)
        for clock in range(8):
            numbers = torch.randint(rows, (6,), generator=generator)
            delta = torch.randint(-4, 5, (6, width), generator=generator).float()
            if clock % 3 == 1:
                delta[:, 1:] = 0  # travels as single elements
            if clock % 4:
                table.get(numbers)
            table.inc(delta, numbers)
            made.index_add_(0, numbers, delta)
            table.clock()
        return drained(table), made

    found = with_tables(size, act, tricks=Tricks(seed=9))
    total = sum(made for _, made in found)
    for values, _ in found:
        assert torch.equal(values, total)


def test_rows_nobody_asked_for_do_not_travel():
    def act(tables: Tables) -> int:
        table = tables.create("t", rows=20_000, width=50, sparse=True)
        for _ in range(5):
            table.get([tables.rank, 7])
            table.inc(torch.ones(1, 50), [7])
            table.clock()
        drained_row = table.get([7])
        assert drained_row.eq(10.0).all()
        return tables._hub.mailbox.bytes_received

    assert max(with_tables(2, act)) < 20_000


@pytest.mark.parametrize("kind", KINDS)
def test_long_messages_travel_in_fragments(kind):
    """Shares of 1.2 MB, many times what a mailbox's slot holds, while short ones overtake them."""
    start = torch.randn(6000, 100, generator=torch.Generator().manual_seed(3))

    def act(tables: Tables) -> torch.Tensor:
        long = tables.create("long", rows=6000, width=100, sparse=True, staleness=1, start=start)
        short = tables.create("short", rows=3, width=1)
        for clock in range(3):
            long.get()
            assert short.get().eq(2 * clock).all()
            long.inc(torch.ones(6000, 100))
            short.inc(torch.ones(3, 1))
            tables.clock()
        return drained(long)

    for values in with_tables(2, act, kind=kind, tricks=Tricks(seed=4) if kind == "inproc" else None):
        torch.testing.assert_close(values, start + 6)


def test_a_worker_that_finishes_early_is_waited_for_no_longer():
    def act(tables: Tables) -> torch.Tensor:
        table = tables.create("t", rows=9, width=3, staleness=1)
        for _ in range(2 if tables.rank == 1 else 10):
            table.get()
            table.inc(torch.ones(9, 3))
            table.clock()
        return table.get() if tables.rank != 1 else torch.empty(0)

    first, _, third = with_tables(3, act)
    assert first.min() >= 2 + 9 + 9
    assert third.max() <= 2 + 10 + 10


def test_a_lost_worker_is_named_to_those_who_wait():
    losses: list[str] = []
    everybody_is_here = threading.Barrier(3, timeout=60)

    def act(tables: Tables) -> None:
        table = tables.create("t", rows=4, width=2)
        table.get()
        table.inc(torch.ones(4, 2))
        if tables.rank == 1:
            everybody_is_here.wait()
            raise ValueError("the cat sat on the cable")
        everybody_is_here.wait()
        try:
            table.clock()
            table.get()
        except PeerLost as problem:
            losses.append(str(problem))
            raise

    with pytest.raises(ValueError, match="the cat"):
        with_tables(3, act)
    assert len(losses) == 2
    assert all("rank 1" in text for text in losses)


def test_several_tables_each_with_its_own_staleness():
    def act(tables: Tables) -> tuple[torch.Tensor, torch.Tensor]:
        exact = tables.create("exact", rows=4, width=1)
        loose = tables.create("loose", rows=4, width=1, staleness=5, dtype=torch.float64)
        for clock in range(6):
            assert exact.get().eq(clock * tables.num_workers).all()
            assert loose.get().min() >= 0
            exact.inc(torch.ones(4, 1))
            loose.inc(torch.ones(4, 1))
            tables.clock()
        return drained(exact), drained(loose)

    for exact, loose in with_tables(3, act):
        assert exact.eq(18).all()
        assert loose.eq(18).all()
        assert loose.dtype == torch.float64


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"staleness": 1}, "staleness: 0 on rank 0 .*; staleness: 1 on rank 1"),
        ({"rows": 5}, "num_rows: 4 on rank 0 .*; num_rows: 5 on rank 1"),
        ({"start": torch.ones(4, 2)}, "start: zeros on rank 0 .*; start: [0-9a-f-]+ on rank 1"),
    ],
    ids=["staleness", "rows", "start"],
)
def test_workers_that_create_different_tables_are_told(own, told):
    def act(tables: Tables) -> None:
        tables.create("first", rows=1, width=1)
        settings = {"rows": 4, "width": 2} | (own if tables.rank == 1 else {})
        with pytest.raises(WorkersDiffer, match=f"workers differ in the table number 1, line .*{told}"):
            tables.create("t", **settings)

    with_tables(2, act)


def test_a_managed_table_keeps_what_was_added_last():
    """Rows that may wait for clocks leave when their worker does."""

    def act(tables: Tables) -> torch.Tensor:
        table = tables.create("t", rows=40, width=2, staleness=5, consistency="ssp-managed")
        if tables.rank == 1:
            table.inc(torch.ones(40, 2))
            table.clock()
            return torch.empty(0)
        while table.get().min() < 1:  # others' clocks are no bound any more once they have left
            table.clock()
        return table.get()

    assert with_tables(2, act)[0].eq(1).all()


def test_mistakes_are_told():
    def act(tables: Tables) -> None:
        table = tables.create("users", rows=4, width=2)
        with pytest.raises(UsageError, match=r"rows of table 'users' are 0 … 3, got 1 … 4"):
            table.get([1, 4])
        with pytest.raises(UsageError, match=r"table 'users' is to be added \(1, 2\), got a delta of \(2, 1\)"):
            table.inc(torch.ones(2, 1), [0])
        with pytest.raises(UsageError, match="is one of ssp, ssp-push, ssp-managed, got 'bsp'"):
            tables.create("x", rows=1, width=1, consistency="bsp")
        with pytest.raises(UsageError, match=r"starts from 4 × 2 values, got \(2, 4\)"):
            tables.create("x", rows=4, width=2, start=torch.ones(2, 4))
        with pytest.raises(UsageError, match="0 or more clocks, got -1"):
            tables.create("x", rows=4, width=2, staleness=-1)
        with pytest.raises(UsageError, match="float32 or float64"):
            tables.create("x", rows=4, width=2, dtype=torch.int32)
        with pytest.raises(UsageError, match="the order of rows is one of importance, random, fifo, fixed, got 'any'"):
            Tables(row_order="any", transport=tables._transport)

    with_tables(1, act)
