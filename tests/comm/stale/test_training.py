"""Training on tables. With staleness 0: one worker with all batches. With more: bounded on every read, and the ledger
of gradients adds up."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from poseidon.comm.events import CommEvent, UnitRead
from poseidon.comm.stale.message import Form
from poseidon.comm.stale.protocol import Mode
from poseidon.errors import PeerLost, UsageError
from poseidon.plan import STALE_SCHEMES, Scheme
from poseidon.run.stale_rule import RuleUpdate
from poseidon.run.stale_updates import Staleness, check_stale
from poseidon.solver.rules import Hyper
from poseidon.spec import parse_solver
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from poseidon.transport.onesided.inproc import Tricks
from tests.comm.nets import CASES, CLIPPED, LENET, MLP, WORDS
from tests.comm.stale.kit import Carried, Straggler
from tests.comm.stale.training import gradient_of, join_stale, lose_process, stale_request, train_processes
from tests.comm.training import (
    SOLVERS,
    STEPS,
    assert_replicas,
    one_worker,
    plan_of,
    relative_distance,
    solver_of,
    values_of,
)
from tests.workers import WorkerPool

pytestmark = pytest.mark.xdist_group("workers")

SIZE = 3
EXACT = [case for case in CASES if case is not CLIPPED]
MODES = (Mode.PULL, Mode.PUSH)


def trained(case, kind, scheme, staleness, *, carrier="inproc", tricks=None, steps=STEPS, listener=None):
    plan = plan_of(case, SIZE, stale_request(scheme))

    def work(transport: Transport) -> list[torch.Tensor]:
        carried = Carried(transport, carrier)
        solver = solver_of(case, kind, case.batch)
        updates = join_stale(case, plan, carried, solver, staleness, listener)  # type: ignore[arg-type]
        solver.step(steps)
        updates.drain()
        updates.close()
        return values_of(solver)

    return run_workers(SIZE, work, tricks=tricks)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scheme", STALE_SCHEMES)
@pytest.mark.parametrize("case", EXACT, ids=lambda case: case.name)
def test_staleness_0_equals_one_worker_with_all_batches(case, scheme, mode):
    values = trained(case, "SGD", scheme, Staleness(0, mode), tricks=Tricks(seed=4))
    assert_replicas(values)
    assert relative_distance(values[0], one_worker(case, "SGD", SIZE)) < 1e-12


@pytest.mark.parametrize("kind", SOLVERS)
def test_every_rule_is_applied_once_per_clock(kind):
    values = trained(MLP, kind, Scheme.FACTOR_SERVER, Staleness(0))
    assert_replicas(values)
    assert relative_distance(values[0], one_worker(MLP, kind, SIZE)) < 1e-8


@pytest.mark.parametrize("carrier", ["tcp", "shared memory"])
def test_whatever_carries_it(carrier):
    values = trained(LENET, "SGD", None, Staleness(0), carrier=carrier)
    assert_replicas(values)
    assert relative_distance(values[0], one_worker(LENET, "SGD", SIZE)) < 1e-12


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clocks", [1, 3])
def test_every_read_keeps_the_bound(clocks, mode):
    heard: list[UnitRead] = []

    def hear(event: CommEvent) -> None:
        if isinstance(event, UnitRead):
            heard.append(event)

    values = trained(LENET, "Adam", None, Staleness(clocks, mode), tricks=Tricks(seed=8), listener=hear)
    assert_replicas(values)  # drained to a common clock
    assert {event.clock for event in heard} == set(range(STEPS + 1))
    assert all(event.clock - clocks <= event.version <= event.clock for event in heard)


@pytest.mark.parametrize("scheme", STALE_SCHEMES)
def test_the_ledger_of_gradients_adds_up(scheme, monkeypatch):
    """Plain descent: w_end = w_start − rate / P · Σ of all gradients that any worker has made, each part of each clock
    entering once; and everybody ends with that."""
    applied: Counter[tuple[str, int, int]] = Counter()
    right = RuleUpdate.apply

    def counting(self, values, total):
        applied[self._spec.name, total.part, total.clock] += 1
        right(self, values, total)

    monkeypatch.setattr(RuleUpdate, "apply", counting)
    plan = plan_of(MLP, SIZE, stale_request(scheme))
    clocks, rate = 15, float(np.float32(0.05))  # as the solver rounds it
    produced: dict[str, torch.Tensor] = {}
    lock = threading.Lock()

    def work(transport: Transport):
        solver = solver_of(MLP, "SGD", MLP.batch)
        solver.param.momentum = solver.param.weight_decay = 0.0
        straggler = Straggler(3, transport.rank)
        updates = join_stale(MLP, plan, transport, solver, Staleness(3))
        start = values_of(solver)
        for exchange in updates.exchanges:
            _record(exchange, produced, lock)
        run = solver.run

        def slow_run(*, backward: bool):
            straggler.compute()
            return run(backward=backward)

        solver.run = slow_run
        solver.step(clocks)
        updates.drain()
        changed = {
            table.spec.name: table.lay_out([_change(solver, start, member) for member in table.members]).view(-1)
            for exchange in updates.exchanges
            for table in exchange.tables()
        }
        parts = [
            (t.spec.name, part) for e in updates.exchanges for t in e.tables() for part in range(len(t.spec.spans))
        ]
        updates.close()
        return changed, parts

    found = run_workers(SIZE, work, tricks=Tricks(seed=2))
    assert applied == {(name, part, clock): 1 for name, part in found[0][1] for clock in range(clocks)}
    for changed, _ in found:
        assert changed.keys() == produced.keys()
        for name, change in changed.items():
            torch.testing.assert_close(change, -rate / SIZE * produced[name], rtol=1e-9, atol=1e-12)


def _change(solver, start, member):
    index = [f"{entry.layer}/{entry.index}" for entry in solver.net.learnable].index(member.name)
    return (member.value - start[index]) / solver.slots[index].rate_mult


def _record(exchange, produced, lock):
    """Adds up what an exchange sends."""
    tables = {table.spec.index: table.spec for table in exchange.tables()}
    send = exchange.updates

    def recording(moment):
        for owner, message in send(moment):
            spec = tables[message.table]
            span = spec.spans[message.part]
            update = gradient_of(message, (span.num_rows, spec.width), spec.torch_dtype)
            with lock:
                total = produced.setdefault(spec.name, torch.zeros(spec.num_rows * spec.width, dtype=torch.float64))
                total[span.first * spec.width : span.last * spec.width] += update.reshape(-1)
            yield owner, message

    exchange.updates = recording


def test_factors_stay_short_under_staleness():
    """A fully-connected layer of 128 × 96 with batch 2 and 3 workers: pushes are K·(M + N) and less, not M·N."""
    plan = plan_of(MLP, SIZE, stale_request(Scheme.FACTOR_SERVER))

    def work(transport: Transport) -> list[tuple[int, int]]:
        solver = solver_of(MLP, "SGD", MLP.batch)
        updates = join_stale(MLP, plan, transport, solver, Staleness(1))
        sizes = []
        for exchange in updates.exchanges:
            send = exchange.updates

            def sized(moment, send=send, exchange=exchange):
                sent = list(send(moment))
                sizes.append((sum(len(m.payload) for _, m in sent), exchange.num_elems * 8))
                return iter(sent)

            exchange.updates = sized
        solver.step(2)
        updates.drain()
        updates.close()
        return sizes

    for pushed, dense in run_workers(SIZE, work)[0]:
        if dense > 8 * 200:
            assert pushed < dense


def test_clipping_is_refused():
    plan = plan_of(CLIPPED, SIZE, stale_request())
    with pytest.raises(UsageError, match="clip_gradients needs all gradients of an iteration at once"):
        check_stale(solver_of(CLIPPED, "SGD", CLIPPED.batch), plan)


def test_a_worker_that_fails_is_named_to_the_others():
    plan = plan_of(MLP, SIZE, stale_request())
    heard = []

    def work(transport: Transport) -> None:
        solver = solver_of(MLP, "SGD", MLP.batch)
        updates = join_stale(MLP, plan, transport, solver, Staleness(1))
        try:
            solver.step(3)
            if transport.rank == 2:
                raise ValueError("the cat sat on the cable")
            solver.step(1000)
        except PeerLost as problem:
            heard.append(problem)
            raise
        finally:
            updates.close(wait=False)

    with pytest.raises(ValueError, match="the cat"):
        run_workers(SIZE, work)
    assert len(heard) == 2
    assert all(problem.ranks == (2,) for problem in heard)


def test_rules_see_the_iteration_and_rate_that_came_with_the_gradients(monkeypatch):
    seen = set()
    of = Hyper.of

    def noting(param, iteration, rate):
        seen.add((iteration, round(rate, 6)))
        return of(param, iteration, rate)

    plan = plan_of(MLP, 2, stale_request())

    def work(transport: Transport) -> None:
        solver = solver_of(MLP, "SGD", MLP.batch)
        solver.param.MergeFrom(parse_solver('lr_policy: "step" gamma: 0.5 stepsize: 2'))
        updates = join_stale(MLP, plan, transport, solver, replace(Staleness(), clocks=1))
        solver.step(5)
        updates.drain()
        updates.close()

    monkeypatch.setattr(Hyper, "of", noting)
    run_workers(2, work)
    assert seen == {(0, 0.05), (1, 0.05), (2, 0.025), (3, 0.025), (4, 0.0125)}


# -- processes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", MODES)
def test_processes_equal_one_worker(worker_pool: WorkerPool, mode):
    plan = plan_of(MLP, SIZE, stale_request(Scheme.FACTOR_SERVER)).to_json()
    by_rank = worker_pool.results(
        train_processes, SIZE, case=MLP.name, plan=plan, staleness=0, mode=mode.value, steps=STEPS
    )
    assert by_rank[1] == by_rank[0]
    assert by_rank[2] == by_rank[0]
    expected = [value.reshape(-1) for value in one_worker(MLP, "SGD", SIZE)]
    for found, wanted in zip(by_rank[0], expected, strict=True):
        torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), wanted, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_worker_that_is_lost_is_named_by_the_survivors_within_10_s(worker_pool: WorkerPool, how):
    plan = plan_of(MLP, SIZE, stale_request()).to_json()
    outcomes = worker_pool.run(lose_process, SIZE, lost=(1,), timeout_s=30, case=MLP.name, plan=plan, victim=1, how=how)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.trace
        assert outcome.value["ranks"] == [1]
        assert outcome.value["clock"] <= 5 + 2 + 1, "nobody runs on beyond the bound"
        assert outcome.value["told_s"] < 10


def test_a_server_that_is_lost_is_named_by_the_workers_within_10_s(worker_pool: WorkerPool):
    plan = plan_of(MLP, SIZE - 1, stale_request()).to_json()
    arguments = {"case": MLP.name, "plan": plan, "victim": SIZE - 1, "how": "SIGKILL", "servers": 1}
    outcomes = worker_pool.run(lose_process, SIZE, lost=(SIZE - 1,), timeout_s=30, **arguments)
    for outcome in outcomes[: SIZE - 1]:
        assert outcome.error is None, outcome.trace
        assert outcome.value["ranks"] == [SIZE - 1]
        assert outcome.value["told_s"] < 10


def test_of_an_embedding_only_rows_travel_that_a_batch_has_read():
    plan = plan_of(WORDS, SIZE, stale_request(fuse_bytes=(0,)))

    def work(transport: Transport) -> list[tuple[Form, int]]:
        solver = solver_of(WORDS, "SGD", WORDS.batch)
        updates = join_stale(WORDS, plan, transport, solver, Staleness(0))
        (table,) = (e for e in updates.exchanges if e.members[0].name == "embed/0")
        send, forms = table.updates, []

        def noting(moment):
            for owner, message in send(moment):
                forms.append((message.form, message.count))
                yield owner, message

        table.updates = noting
        solver.step(STEPS)
        updates.drain()
        updates.close()
        return forms, values_of(solver)

    found = run_workers(SIZE, work)
    assert any(form is Form.ROWS for form, _ in found[0][0])
    assert relative_distance(found[0][1], one_worker(WORDS, "SGD", SIZE)) < 1e-12
