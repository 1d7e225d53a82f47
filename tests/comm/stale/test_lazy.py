"""Lazy tables: rows that leave when there is room, within bounds that are counted in what is read, not in labels.

The oracle counts. Column w of a table is worker w's, which adds to some rows in every clock; which ones is drawn from a
seed, so everybody knows what everybody adds when. What is read must have all that was added up to clock c − s − 1, and
nothing that cannot have been added yet.
"""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
import torch

from poseidon.comm.stale.hub import Hub, HubOptions
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.lazy import LazyUpdates
from poseidon.comm.stale.lazy_shard import LazyShard
from poseidon.comm.stale.managed import LETTER_BYTES, Managed, ManagedOptions, PerClock, RowOrder, Unlimited
from poseidon.comm.stale.message import Form, Kind, Message
from poseidon.comm.stale.protocol import Entry, Mode
from poseidon.comm.stale.shard import Addition
from poseidon.comm.stale.table import create_table
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from poseidon.transport.onesided.inproc import Tricks
from tests.comm.stale.kit import Straggler

SIZE, ROWS, CLOCKS = 4, 19, 14


def lazy_spec(rows: int, width: int, staleness: int, *, workers: int = 1, by_rows: bool = False) -> TableSpec:
    return TableSpec(
        index=0,
        name="t",
        num_rows=rows,
        width=width,
        num_workers=workers,
        owners=tuple(range(workers)),
        staleness=staleness,
        mode=Mode.MANAGED,
        entry=Entry.ON_ARRIVAL if staleness else Entry.WHOLE_CLOCKS,
        by_rows=by_rows,
    )


@functools.cache
def touched(seed: int, rank: int, clock: int) -> np.ndarray:
    """The rows that a worker adds to in a clock."""
    return np.array([random.Random(f"{seed} {rank} {clock} {row}").random() < 0.6 for row in range(ROWS)])


@functools.cache
def added(seed: int, clocks: int) -> torch.Tensor:
    """By row and worker: how often it has been added to before a clock."""
    counts = np.zeros((ROWS, SIZE))
    for rank in range(SIZE):
        for clock in range(min(clocks, CLOCKS)):
            counts[:, rank] += touched(seed, rank, clock)
    return torch.from_numpy(counts)


def check_reads(
    seed: int, staleness: int, options: ManagedOptions, by_rows: bool, one: float, tolerance: float
) -> None:
    def act(transport: Transport) -> None:
        rank = transport.rank
        budget = PerClock(150)
        hub = Hub(transport, HubOptions(outgoing=Managed(budget, options)))
        table = create_table(hub, lazy_spec(ROWS, SIZE, staleness, workers=SIZE, by_rows=by_rows))
        straggler = Straggler(seed, rank)
        for clock in range(CLOCKS):
            straggler.compute()
            counts = table.get().double() / one
            assert (counts >= added(seed, clock - staleness) - tolerance).all(), "never staler than s"
            assert (counts <= added(seed, clock + staleness + 1) + tolerance).all(), "nobody can be further ahead"
            torch.testing.assert_close(counts[:, rank], added(seed, clock)[:, rank], rtol=0, atol=1e-5)
            rows = np.flatnonzero(touched(seed, rank, clock))
            delta = torch.zeros(len(rows), SIZE)
            delta[:, rank] = one
            table.inc(delta, rows)
            hub.soon(budget.tick)
            table.clock()
        found = table.get(staleness=0).double() / one
        torch.testing.assert_close(found, added(seed, CLOCKS), rtol=0, atol=1e-4)
        hub.close()

    run_workers(SIZE, act, timeout_s=60, tricks=Tricks(seed=seed))


@pytest.mark.parametrize("by_rows", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("order", list(RowOrder), ids=lambda order: order.value)
def test_every_read_has_what_it_must(order, staleness, by_rows, monkeypatch):
    monkeypatch.setattr("poseidon.comm.stale.managed.LETTER_BYTES", 64)
    options = ManagedOptions(order, seed=staleness)
    check_reads(staleness, staleness, options, by_rows, one=1.0, tolerance=0.0)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_narrow_rows_have_it_but_for_rounding(staleness, monkeypatch):
    """1.0003 is no float16: every row that leaves early leaves a rest behind."""
    monkeypatch.setattr("poseidon.comm.stale.managed.LETTER_BYTES", 64)
    options = ManagedOptions(half=True)
    check_reads(staleness, staleness, options, by_rows=False, one=1.0003, tolerance=CLOCKS * 2**-11)


# -- narrow rows ------------------------------------------------------------------------------------------------------
def sent_bytes(staleness: int, *, half: bool) -> int:
    """What leaves in 12 clocks in which everything is touched and there is room for all of it, and in the end."""
    cache = LazyUpdates(lazy_spec(8, 100, staleness))
    draw = torch.Generator().manual_seed(1)
    total = torch.zeros(8, 100)
    arrived = torch.zeros(8, 100, dtype=torch.float64)
    num_bytes = 0
    for _ in range(12):
        delta = 1e-3 * torch.randn(8, 100, generator=draw)
        total += delta
        cache.add_all(delta)
        cache.finish_clock()
        rows = cache.may_go(np.arange(8))
        messages = [cache.some(0, rows, half=half)] if len(rows) else []
        for message in [*messages, *cache.due(0, staleness)]:
            num_bytes += message.num_bytes
            arrived += content(message)
    for message in cache.due(0, 0):
        num_bytes += message.num_bytes
        arrived += content(message)
    torch.testing.assert_close(arrived.float(), total, rtol=1e-5, atol=1e-8)
    return num_bytes


def content(message: Message) -> torch.Tensor:
    """What a message adds to 8 × 100, worked out here."""
    found = torch.zeros(8, 100, dtype=torch.float64)
    payload = message.payload.numpy().tobytes()
    if message.form is Form.DENSE:
        found += torch.from_numpy(np.frombuffer(payload, np.float32).reshape(8, 100).copy())
    elif message.form in (Form.ROWS, Form.HALF):
        rows = np.frombuffer(payload[: 4 * message.count], np.int32)
        kind = np.float16 if message.form is Form.HALF else np.float32
        found[torch.from_numpy(rows.copy()).long()] = torch.from_numpy(
            np.frombuffer(payload[4 * message.count :], kind).reshape(-1, 100).astype(np.float64)
        )
    else:
        assert message.form is Form.NOTHING
    return found


@pytest.mark.parametrize("staleness", [1, 3, 8])
def test_narrow_rows_are_fewer_bytes(staleness):
    assert sent_bytes(staleness, half=True) < 0.65 * sent_bytes(staleness, half=False)


def test_a_row_that_has_left_is_not_offered_again_for_what_rounding_has_lost():
    cache = LazyUpdates(lazy_spec(3, 5, staleness=4))
    cache.add_all(torch.tensor([[0.1], [1.0], [1e-9]]).expand(3, 5).clone())  # a rest; none; too small for float16
    cache.finish_clock()
    cache.some(0, np.arange(3), half=True)
    assert cache.num_waiting() == 0
    assert len(cache.waiting(without=-1).rows) == 0
    assert cache.ends(0) == [], "the rests are still of this clock"
    cache.add(torch.tensor([0]), torch.full((1, 5), 0.1))
    assert cache.waiting(without=-1).rows.tolist() == [0], "touched anew"


def test_an_idle_job_sends_nothing():
    def act(transport: Transport) -> None:
        hub = Hub(transport, HubOptions(outgoing=Managed(Unlimited(), ManagedOptions(half=True))))
        table = create_table(hub, lazy_spec(50, 30, 5, workers=2))
        table.inc(0.1 * torch.randn(50, 30))
        table.clock()
        settled = _settled(hub)
        for _ in range(50):
            hub.call(lambda: None)
        transport.barrier(10.0)
        assert hub.mailbox.bytes_sent == settled
        transport.barrier(10.0)
        hub.close()

    def _settled(hub: Hub) -> int:
        """Bytes sent when nothing more waits, here and at the other worker."""
        for _ in range(3):
            hub.wait_for(lambda: True, "")
            while hub.call(lambda: hub.outgoing.num_waiting or hub.mailbox.pump() is not None):
                pass
            hub.transport.barrier(10.0)
        return hub.mailbox.bytes_sent

    run_workers(2, act, timeout_s=30)


# -- what is kept, and how much leaves at a time ----------------------------------------------------------------------
def test_a_long_run_remembers_no_more_than_a_short_one():
    cache = LazyUpdates(lazy_spec(6, 2, staleness=3))
    sizes = []
    for clock in range(398):
        cache.add_all(torch.ones(6, 2))
        cache.finish_clock()
        for message in cache.due(0, 3):
            assert message.clock <= clock
        cache.entered(0, cache._numbers[0])
        sizes.append(len(cache._marks))
    assert max(sizes) <= 5
    assert [message.clock for message in cache.due(0, 0) if message.ends] == [396, 397]


def test_early_values_are_short_however_many_rows_are_as_old():
    """All rows of a part were changed in the same clock: a letter takes as many as it holds, and the next one more."""
    width = 64

    def act(transport: Transport) -> None:
        hub = Hub(transport, HubOptions())
        spec = lazy_spec(900, width, 3, workers=2)
        (part,) = spec.parts_of(0)[:1]
        shard = hub.call(lambda: LazyShard(hub, spec, Addition()))
        num_rows = spec.spans[part].num_rows
        delta = torch.ones(num_rows, width).view(-1).view(torch.uint8)
        for worker in (0, 1) if transport.rank == 0 else ():
            shard.receive(worker, Message(Kind.DELTA, 0, part, 0, 1, Form.DENSE, payload=delta))
            shard.receive(worker, Message(Kind.DELTA, 0, part, 0, 2, Form.NOTHING, ends=True))
        lengths = []
        while transport.rank == 0 and shard.num_pending():
            letters = shard.letters_to([1], LETTER_BYTES)
            lengths += [entry.num_bytes for entry in letters]
        assert transport.rank or len(lengths) >= num_rows * width * 4 / LETTER_BYTES
        assert transport.rank or max(lengths) <= LETTER_BYTES + 200
        hub.close()

    run_workers(2, act, timeout_s=30)
