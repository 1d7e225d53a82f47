"""Managed communication: what leaves when, played on the scheduler by itself; and whole jobs, whose ledgers add up and
whose trajectory with staleness 0 is one worker's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from poseidon.comm.events import UnitRead
from poseidon.comm.stale.hub import Hub, HubOptions
from poseidon.comm.stale.mailbox import Mailbox
from poseidon.comm.stale.managed import (
    Managed,
    ManagedOptions,
    PerClock,
    PerSecond,
    RowOrder,
    Unlimited,
)
from poseidon.comm.stale.message import Kind, Message
from poseidon.comm.stale.outgoing import InOrder, Letter, Waiting
from poseidon.comm.stale.row_units import RowTable
from poseidon.plan import Scheme
from poseidon.run.managed_updates import ManagedUpdates
from poseidon.run.options import ROW_ORDERS
from poseidon.run.roundtable import Roundtable
from poseidon.transport.base import Peer
from poseidon.transport.inproc import run_workers
from poseidon.transport.onesided.inproc import Fabric
from tests.comm.nets import CASES, MLP, Case
from tests.comm.training import Fed, one_worker, plain_request, plan_of, solver_of, values_of

DENSE = [case for case in CASES if case.name != "clipped"]


# -- the scheduler by itself ------------------------------------------------------------------------------------------
class Rows:
    """A table of rows that wait, all for one rank."""

    owner = 1

    def __init__(self, table, magnitudes, weights, since, row_bytes=16 << 10):
        self.table, self.row_bytes = table, row_bytes
        self.state = {row: (m, w, s) for row, (m, w, s) in enumerate(zip(magnitudes, weights, since, strict=True))}
        self.halves = []

    def num_waiting(self):
        return len(self.state)

    def waiting(self):
        rows = np.array(sorted(self.state))
        columns = [np.array([self.state[row][k] for row in rows]) for k in range(3)]
        return Waiting(rows, np.full(len(rows), self.owner), *columns, self.row_bytes)

    def letters(self, rows, *, half=False):
        self.halves.append(half)
        found = [row for row in rows if row in self.state]
        for row in found:
            del self.state[row]
        return [letter(f"{self.table}:{row}", self.owner, size=self.row_bytes) for row in found]


def letter(name, to=1, priority=100, size=100, clock=0):
    data = torch.zeros(size, dtype=torch.uint8)
    data[: len(name)] = torch.tensor(list(name.encode()), dtype=torch.uint8)
    return Letter(to, data, priority, clock=clock)


def name_of(found):
    return bytes(found.data.tolist()).rstrip(b"\0").decode()


def played(scheduler, ready=(1,), now_s=0.0, most=100):
    """What leaves at one moment."""
    names = []
    while len(names) < most and (found := scheduler.take(ready, now_s)) is not None:
        scheduler.sent(found, now_s)
        names.append(name_of(found))
    return names


def numbers(names):
    return [int(name.partition(":")[2]) for name in names]


def managed(order, **options):
    return Managed(options.pop("allowance", Unlimited()), ManagedOptions(order, **options))


MAGNITUDES, WEIGHTS, SINCE = [3.0, 8.0, 1.0, 4.0, 2.0], [1.0, 10.0, 0.1, 1.0, 4.0], [5, 1, 4, 2, 3]


def test_older_clocks_leave_first_and_in_each_what_is_urgent():
    scheduler = InOrder()
    for name, to, priority, clock in (("a", 1, 103, 4), ("b", 1, 100, 5), ("c", 2, 101, 5), ("d", 2, 102, 4)):
        scheduler.put(letter(name, to, priority, clock=clock))
    assert played(scheduler, ready=(1, 2)) == ["d", "a", "b", "c"]


def test_what_a_role_says_of_a_table_keeps_its_order():
    """What has no clock of its own goes with what was said before; values and deltas do not hold each other up."""
    mailbox = Mailbox(Fabric((Peer(0, "a", 1), Peer(1, "b", 2))).endpoints[0], InOrder())

    def clock_of(kind, clock=0, table=7):
        (found,) = mailbox.letters(Message(kind, table, clock=clock), [1], 100)
        return found.clock

    assert clock_of(Kind.DELTA, 4) == 4
    assert clock_of(Kind.VALUES, 3) == 2  # the outcome of clock 2
    assert clock_of(Kind.READ, 2) == 1  # a question overtakes
    assert clock_of(Kind.LEAVE) == 4
    assert clock_of(Kind.LEFT) == 2
    assert clock_of(Kind.DELTA, 1, table=8) == 1


def test_the_most_important_rows_leave_first():
    """|Δ| / |w| = 3, 0.8, 10, 4, 0.5."""
    scheduler = managed(RowOrder.IMPORTANCE)
    scheduler.register(Rows(0, MAGNITUDES, WEIGHTS, SINCE, row_bytes=32 << 10))
    assert numbers(played(scheduler)) == [2, 3, 0, 1, 4]


def test_importance_is_compared_between_tables():
    scheduler = managed(RowOrder.IMPORTANCE)
    scheduler.register(Rows(0, [1.0, 5.0], [1.0, 1.0], [0, 0], row_bytes=32 << 10))
    scheduler.register(Rows(1, [3.0, 9.0], [1.0, 1.0], [0, 0], row_bytes=32 << 10))
    assert played(scheduler) == ["1:1", "0:1", "1:0", "0:0"]


def test_rows_compete_one_by_one_whatever_table_they_are_of():
    """A row of a table of four is drawn first as often as one of a table of forty; two rows fill a letter."""
    firsts = []
    for seed in range(400):
        scheduler = managed(RowOrder.RANDOM, seed=seed)
        scheduler.register(Rows(0, [1.0] * 4, [1.0] * 4, [0] * 4))
        scheduler.register(Rows(1, [1.0] * 40, [1.0] * 40, [0] * 40))
        firsts.append(played(scheduler, most=1)[0].partition(":")[0])
    share = firsts.count("0") / len(firsts)
    assert abs(share - 4 / 44) < 4 * (4 / 44 * 40 / 44 / len(firsts)) ** 0.5


def test_an_important_row_takes_no_unimportant_ones_of_its_table_along():
    scheduler = managed(RowOrder.IMPORTANCE, allowance=PerClock(16 * (16 << 10)))  # what is chosen at once
    scheduler.register(Rows(0, [9.0] + [0.1] * 20, [1.0] * 21, [0] * 21))
    scheduler.register(Rows(1, [5.0] * 15, [1.0] * 15, [0] * 15))
    assert sorted(played(scheduler)) == sorted(["0:0"] + [f"1:{row}" for row in range(15)])


def test_other_orders():
    def order_of(order, **options):
        scheduler = managed(order, **options)
        scheduler.register(Rows(0, MAGNITUDES, WEIGHTS, SINCE, row_bytes=32 << 10))
        return numbers(played(scheduler))

    assert order_of(RowOrder.FIFO) == [1, 3, 4, 2, 0]
    assert order_of(RowOrder.FIXED) == [0, 1, 2, 3, 4]
    drawn = {tuple(order_of(RowOrder.RANDOM, seed=seed)) for seed in range(20)}
    assert len(drawn) > 10
    assert all(sorted(found) == [0, 1, 2, 3, 4] for found in drawn)


def test_the_fixed_order_goes_round_and_round():
    allowance = PerClock(2 * (32 << 10))
    scheduler = managed(RowOrder.FIXED, allowance=allowance)
    source = Rows(0, [1.0] * 5, [1.0] * 5, [0] * 5, row_bytes=32 << 10)
    scheduler.register(source)
    found = []
    for _ in range(4):
        found.append(numbers(played(scheduler)))
        source.state = dict.fromkeys(range(5), (1.0, 1.0, 0))
        scheduler._chosen[False].clear()
        allowance.tick()
    assert found == [[0, 1], [2, 3], [4, 0], [1, 2]]


def test_what_must_go_goes_first_and_by_priority():
    scheduler = managed(RowOrder.IMPORTANCE)
    scheduler.register(Rows(0, [1.0], [1.0], [0]))
    scheduler.put(letter("late", priority=200))
    scheduler.put(letter("soon", priority=50))
    assert played(scheduler) == ["soon", "late", "0:0"]


def test_nobody_is_asked_for_letters_to_itself():
    """To find out that there are none, all that waits would be looked at."""

    class Asked(InOrder):
        def __init__(self):
            super().__init__()
            self.ready = []

        def take(self, ready, now_s):
            self.ready.append(set(ready))
            return super().take(ready, now_s)

    def act(transport):
        outgoing = Asked()
        Hub(transport, HubOptions(outgoing=outgoing)).close()
        return outgoing.ready

    for rank, asked in enumerate(run_workers(3, act, timeout_s=60)):
        assert asked
        assert all(ready <= {0, 1, 2} - {rank} for ready in asked)


@pytest.mark.parametrize(
    ("limit_bps", "num_bytes"), [(1e6, 32 << 10), (200e6, 125_000), (10e9, 240 << 10)], ids=["least", "5 ms", "most"]
)
def test_a_letter_takes_five_milliseconds_of_the_budget(limit_bps, num_bytes):
    """Within limits. Rows are of 1000 bytes."""
    scheduler = managed(RowOrder.FIFO, allowance=PerSecond(limit_bps))
    source = Rows(0, [1.0] * 1000, [1.0] * 1000, range(1000), row_bytes=1000)
    scheduler.register(source)
    played(scheduler, most=1)
    assert 1000 - source.num_waiting() == num_bytes // 1000


def test_rows_for_full_mailboxes_wait():
    scheduler = managed(RowOrder.IMPORTANCE)
    scheduler.register(Rows(0, [1.0], [1.0], [0]))
    assert played(scheduler, ready=(2, 3)) == []
    assert played(scheduler, ready=(1,)) == ["0:0"]


def test_a_full_mailbox_holds_up_nobody_else():
    scheduler = managed(RowOrder.IMPORTANCE, allowance=PerSecond(200e6))
    scheduler.register(Rows(0, [1.0], [1.0], [0]))
    scheduler.put(letter("must", to=2))
    assert played(scheduler, ready=(1,)) == ["0:0"]
    assert played(scheduler, ready=(1, 2), now_s=1.0) == ["must"]


def test_a_budget_per_second_holds_everything_up():
    scheduler = managed(RowOrder.FIFO, allowance=PerSecond(8e6))  # 1 MB/s
    rows = 200
    scheduler.register(Rows(0, [1.0] * rows, [1.0] * rows, range(rows), row_bytes=32 << 10))
    sent, now_s = 0, 0.0
    while now_s < 2.0:
        sent += len(played(scheduler, now_s=now_s))
        wait_s = scheduler.due_s(now_s)
        assert wait_s is not None
        assert wait_s > 0
        now_s += wait_s
    assert sent * (32 << 10) / (1448 / 1514) == pytest.approx(2e6, rel=0.05)


def test_what_is_urgent_waits_for_one_letter_under_a_budget():
    """Bulk of 2 s is waiting; what becomes urgent meanwhile leaves as soon as anything may."""
    scheduler = managed(RowOrder.FIFO, allowance=PerSecond(8e6))
    for number in range(20):
        scheduler.put(letter(f"bulk {number}", priority=200, size=100 << 10))
    assert played(scheduler) == ["bulk 0"]
    scheduler.put(letter("urgent", priority=0))
    wait_s = scheduler.due_s(0.0)
    assert wait_s == pytest.approx(0.107, abs=0.001)  # 100 kB and headers, at 1 MB/s
    assert played(scheduler, now_s=wait_s, most=1) == ["urgent"]


def test_a_budget_per_clock_is_for_early_rows_only():
    """What must go goes, and is paid back."""
    allowance = PerClock(100 << 10)
    scheduler = managed(RowOrder.FIFO, allowance=allowance)
    scheduler.register(Rows(0, [1.0] * 20, [1.0] * 20, range(20), row_bytes=32 << 10))
    assert len(played(scheduler)) == 4  # a letter may overdraw
    for _ in range(10):
        scheduler.put(letter("must", size=32 << 10))
    assert played(scheduler) == ["must"] * 10
    for _ in range(3):
        allowance.tick()
        assert played(scheduler) == []
    allowance.tick()
    assert len(played(scheduler)) > 0


def test_neighbours_cost_nothing_and_wait_for_nothing():
    """Rank 1 is across the network, rank 2 shares memory with this one; the budget is used up."""
    scheduler = managed(RowOrder.FIFO, allowance=PerSecond(8e6))
    scheduler.know([2])
    for number in range(4):
        scheduler.put(letter(f"far {number}", size=100 << 10))
        scheduler.put(letter(f"near {number}", to=2, size=100 << 10))
    source = Rows(0, [1.0] * 3, [1.0] * 3, range(3))
    source.owner = 2
    scheduler.register(source)
    found = played(scheduler, ready=(1, 2))
    assert [name for name in found if name.startswith("far")] == ["far 0"], "1 MB/s are for the network"
    assert [name for name in found if not name.startswith("far")] == [
        *(f"near {n}" for n in range(4)),
        "0:0",
        "0:1",
        "0:2",
    ]
    assert scheduler.due_s(0.0) == pytest.approx((100 << 10) / (1448 / 1514) / 1e6, rel=0.01), "near ones were free"


def test_half_rows_are_asked_for():
    scheduler = managed(RowOrder.IMPORTANCE, half=True)
    source = Rows(0, [1.0], [1.0], [0])
    scheduler.register(source)
    played(scheduler)
    assert source.halves == [True]


def test_orders_have_the_names_that_options_know():
    assert [order.value for order in RowOrder] == list(ROW_ORDERS)


# -- whole jobs -------------------------------------------------------------------------------------------------------
def train(case: Case, kind, size, steps, *, staleness=0, outgoing=None, act=None):
    """The parameters of every worker, and what `act` returns of (updates, solver) before everything is drained."""
    plan = plan_of(case, size, plain_request(scheme=Scheme.SERVER))

    def work(transport):
        solver = solver_of(case, kind, case.batch)
        solver.net.draws.first, solver.net.draws.stride = transport.rank, transport.size
        solver.run = Fed(solver.net, lambda clock: case.share_of(clock, transport.rank, transport.size))
        table = Roundtable(transport)
        for layer in solver.net.layers.values():
            if hasattr(layer, "count_over_workers"):
                layer.count_over_workers(transport.size, table.sum)
        hub = Hub(transport, HubOptions(outgoing=(outgoing or (lambda: managed(RowOrder.IMPORTANCE)))()))
        updates = ManagedUpdates(solver, plan, hub, staleness, table.mean)
        solver.updates = updates
        solver.step(steps)
        found = None if act is None else act(updates, solver, table)
        updates.drain()
        values = values_of(solver)
        updates.close()
        return values, found

    return run_workers(size, work, timeout_s=60)


@pytest.mark.parametrize("case", DENSE, ids=lambda case: case.name)
@pytest.mark.parametrize("kind", ["SGD", "Nesterov"])
def test_with_staleness_0_a_linear_rule_gives_one_workers_trajectory(case, kind):
    """Momentum at the workers, and the sum of their steps: for SGD and Nesterov that is the step of the whole batch."""
    by_rank = train(case, kind, 3, 20)
    for values, _ in by_rank:
        for mine, expected in zip(values, one_worker(case, kind, 3), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("order", list(RowOrder), ids=lambda order: order.value)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_everything_produced_is_applied_exactly_once(order, half, staleness, monkeypatch):
    """Start + Σ over workers and clocks of what was added = the values at the end, on every worker, whatever left
    early, narrowed, or late, with a tight budget."""
    produced = []
    add = RowTable.add

    def noted(self, delta):
        produced.append((self.spec.name, delta.clone()))
        add(self, delta)

    monkeypatch.setattr(RowTable, "add", noted)
    monkeypatch.setattr("poseidon.comm.stale.managed.LETTER_BYTES", 64)
    draws = random.Random(staleness)
    by_rank = train(
        MLP,
        "SGD",
        3,
        12,
        staleness=staleness,
        outgoing=lambda: managed(order, half=half, allowance=PerClock(300), seed=draws.randrange(100)),
    )
    start = dict(zip(names_of(MLP), values_of(solver_of(MLP, "SGD", MLP.batch)), strict=True))
    total = {name: value.clone() for name, value in start.items()}
    for name, delta in produced:
        total[name] += delta
    assert len(produced) == 3 * 12 * len(start)
    for values, _ in by_rank:
        for name, value in zip(start, values, strict=True):
            torch.testing.assert_close(value, total[name], rtol=1e-9, atol=1e-12)


def names_of(case):
    solver = solver_of(case, "SGD", case.batch)
    return [f"{entry.layer}/{entry.index}" for entry in solver.net.learnable]


def test_early_rows_leave_before_their_clock_is_due():
    def act(updates, solver, table):
        return updates.hub.outgoing.num_early

    by_rank = train(MLP, "SGD", 3, 12, staleness=3, act=act)
    assert all(early > 0 for _, early in by_rank)


def test_nobody_reads_values_that_are_too_old():
    """Every read: the version is at least clock − s."""
    reads = []
    plan = plan_of(MLP, 3, plain_request(scheme=Scheme.SERVER))

    def work(transport):
        solver = solver_of(MLP, "SGD", MLP.batch)
        solver.run = Fed(solver.net, lambda clock: MLP.share_of(clock, transport.rank, transport.size))
        hub = Hub(transport, HubOptions(outgoing=managed(RowOrder.IMPORTANCE, allowance=PerClock(200))))
        updates = ManagedUpdates(
            solver, plan, hub, 2, Roundtable(transport).mean, listener=lambda event: reads.append(event)
        )
        solver.updates = updates
        solver.step(15)
        updates.drain()
        updates.close()

    run_workers(3, work, timeout_s=60)
    seen = [event.clock - event.version for event in reads if isinstance(event, UnitRead)]
    assert len(seen) >= 3 * 15 * 2
    assert max(seen) <= 2
    assert max(seen) > 0


def test_histories_in_a_snapshot_are_the_mean_over_workers():
    def act(updates, solver, table):
        own = [history.clone() for slot in solver.slots for history in slot.history]
        return own, updates.histories()

    found = [told for _, told in train(MLP, "SGD", 3, 5, act=act)]
    means = [torch.stack(own).mean(0) for own in zip(*(own for own, _ in found), strict=True)]
    assert [len(histories) for _, histories in found] == [len(means), 0, 0]
    for mean, history in zip(means, found[0][1], strict=True):
        torch.testing.assert_close(history, mean)
