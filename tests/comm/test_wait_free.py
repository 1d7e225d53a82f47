"""Backward never waits for the network, forward waits layer by layer, and all workers start exchanges in one order.

Nothing here looks at a clock: operations are held until something else has happened, and what happened is read from a
log. A worker that waits where it should not, or does not where it should, shows in the log or never gets to an end.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from poseidon.comm.events import (
    CommEvent,
    SendApplied,
    SendLeft,
    SendReduced,
    SendStarted,
    UnitDone,
    UnitReady,
    WaitEnded,
    WaitStarted,
)
from poseidon.comm.part import Part
from poseidon.comm.server import PULL
from poseidon.net import Net
from poseidon.plan import CommPlan, Override, Scheme, Send
from poseidon.plan.turns import MOST_LATE
from poseidon.transport import Transport
from poseidon.transport.faulty import Faults, FaultyTransport
from poseidon.transport.inproc import run_workers
from tests.comm.nets import CLIPPED, DEEP, MLP, Case
from tests.comm.training import Worker, assert_replicas, join, plain_request, plan_of, solver_of, train, values_of
from tests.comm.watching import HoldingTransport, Log, units_of

LAYERS = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8")
MIXED = tuple(
    map(Override, ("fc6", "fc7", "fc8", "conv3"), (Scheme.FACTORS, Scheme.FACTOR_SERVER, *[Scheme.SERVER] * 2))
)

Body = Callable[[Worker, Log], None]


def watched(plan: CommPlan, transport: Transport, body: Body, case: Case = DEEP) -> Log:
    """Runs `body` as one of the workers, and returns its log."""
    log = Log()
    solver = solver_of(case, "SGD", case.batch)
    worker = join(case, plan, transport, solver, listener=log)
    log.watch(solver.net)
    body(worker, log)
    worker.close()
    return log


def steps(number: int) -> Body:
    def body(worker: Worker, log: Log) -> None:
        worker.solver.step(number)
        worker.updates.drain()

    return body


def delayed(seed: int) -> Callable[[Transport], Transport]:
    return lambda transport: FaultyTransport(transport, Faults(seed, max_delay_s=5e-4))


# -- forward ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER])
@pytest.mark.parametrize("held", ["conv1", "conv4", "fc6", "fc8"])
def test_the_next_forward_pass_runs_up_to_the_layer_whose_exchange_is_held(scheme, held):
    plan = plan_of(DEEP, 2, plain_request(scheme=scheme))
    units = units_of(plan, [held])

    def work(transport: Transport) -> Log:
        if transport.rank > 0:
            return watched(plan, transport, steps(2))
        released = threading.Event()

        def body(worker: Worker, log: Log) -> None:
            # Let go only when forward has come to the held layer and found that it must wait.
            watcher = threading.Thread(target=lambda: (log.wait_for(is_stuck), released.set()))
            watcher.start()
            steps(2)(worker, log)
            watcher.join()

        return watched(plan, HoldingTransport(transport, plan, units, released), body)

    def is_stuck(entries) -> bool:
        return any(WaitStarted(unit) in entries for unit in units)

    log = run_workers(2, work)[0]
    begun = log.position(("enter", "conv1"), 1)
    stuck = min(log.position(WaitStarted(unit)) for unit in units if WaitStarted(unit) in log.entries)
    place = LAYERS.index(held)
    until = [entry for entry in log.entries[begun:stuck] if entry in [("forward", layer) for layer in LAYERS]]
    assert until == [("forward", layer) for layer in LAYERS[:place]]
    assert max(log.position(UnitDone(unit)) for unit in units) < log.position(("forward", held), 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_layer_runs_only_when_its_parameters_are_up_to_date(seed):
    plan = plan_of(DEEP, 3, plain_request(overrides=MIXED, chunk_bytes=(160.0,)))
    for log in run_workers(3, lambda transport: watched(plan, delayed(seed)(transport), steps(4))):
        for layer in LAYERS:
            for unit in units_of(plan, [layer]):
                for iteration in range(3):
                    done = log.position(UnitDone(unit), iteration)
                    assert done < log.position(("forward", layer), iteration + 1)


def test_a_wait_is_told_with_its_end_and_only_where_there_is_one():
    plan = plan_of(DEEP, 2, plain_request())
    for log in run_workers(2, lambda transport: watched(plan, delayed(0)(transport), steps(3))):
        started, ended = log.of(WaitStarted), log.of(WaitEnded)
        assert [event.unit for event in started] == [event.unit for event in ended]
        for unit in range(len(plan.units)):
            own = [event for event in log.entries if getattr(event, "unit", None) == unit]
            for before, event in itertools.pairwise(own):
                assert not (type(before) is UnitDone and type(event) is WaitStarted)


@pytest.mark.parametrize("reads", ["save", "load", "state_dict", "load_state_dict"])
def test_whoever_reads_or_writes_parameters_waits_for_all_of_them(reads, tmp_path):
    plan = plan_of(DEEP, 2, plain_request())
    units = units_of(plan, ["fc6"])
    Net.from_text(DEEP.text(1), phase="TRAIN").save(tmp_path / "other.caffemodel")
    calls = {
        "save": lambda net: net.save(tmp_path / "net.caffemodel"),
        "load": lambda net: net.load(tmp_path / "other.caffemodel"),
        "state_dict": lambda net: net.state_dict(),
        "load_state_dict": lambda net: net.load_state_dict(Net.from_text(DEEP.text(1), phase="TRAIN").state_dict()),
    }

    def work(transport: Transport) -> Log:
        released = threading.Event()

        def body(worker: Worker, log: Log) -> None:
            worker.solver.step(1)
            watcher = threading.Thread(
                target=lambda: (log.wait_for(lambda entries: WaitStarted(*units) in entries), released.set())
            )
            watcher.start()
            calls[reads](worker.solver.net)
            log("read")
            watcher.join()
            worker.updates.drain()

        return watched(plan, HoldingTransport(transport, plan, units, released), body)

    for log in run_workers(2, work):
        assert log.position(UnitDone(*units)) < log.position("read")


# -- backward ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("scheme", [None, Scheme.SERVER])
def test_an_exchange_can_be_over_before_backward_is(scheme):
    plan = plan_of(DEEP, 2, plain_request(scheme=scheme))
    (last,) = units_of(plan, ["fc8"])

    def body(worker: Worker, log: Log) -> None:
        def stop_backward(made: Tensor) -> None:
            made.register_hook(lambda diff: log.wait_for(lambda entries: UnitDone(last) in entries))

        worker.solver.net.layers["conv1"].register_forward_hook(lambda _, given, made: stop_backward(made))
        steps(1)(worker, log)

    for log in run_workers(2, lambda transport: watched(plan, transport, body)):
        assert log.position(SendStarted(last, Send(last, 0, 18))) < log.position(UnitReady(0))
        assert log.position(UnitDone(last)) < log.position(UnitReady(0))


def test_backward_does_not_wait_for_any_exchange():
    plan = plan_of(DEEP, 2, plain_request(in_flight=1))
    everything = range(len(plan.units))

    def work(transport: Transport) -> Log:
        released = threading.Event()

        def body(worker: Worker, log: Log) -> None:
            worker.solver.step(1)  # every operation is held, and still the iteration ends
            assert {event.unit for event in log.of(UnitReady)} == set(everything)
            assert not log.of(SendReduced)
            released.set()
            worker.updates.drain()

        return watched(plan, HoldingTransport(transport, plan, everything, released), body)

    run_workers(2, work)


# -- order ------------------------------------------------------------------------------------------------------------
def shuffled_order(plan: CommPlan, seed: int) -> CommPlan:
    """The plan with its sends in another order, each unit's own still from first to last."""
    rng = random.Random(seed)
    waiting = {unit.index: [send for send in plan.order if send.unit == unit.index] for unit in plan.units}
    order = []
    while any(waiting.values()):
        unit = rng.choice([index for index, sends in waiting.items() if sends])
        order.append(waiting[unit].pop(0))
    return replace(plan, order=tuple(order))


@pytest.mark.parametrize("seed", range(4))
def test_all_workers_start_in_the_order_of_the_plan_whatever_the_delays(seed):
    request = plain_request(overrides=MIXED, chunk_bytes=(160.0,), in_flight=1 + seed)
    plan = shuffled_order(plan_of(DEEP, 3, request), seed)
    assert any(a.unit != b.unit and b.start > 0 for a, b in itertools.pairwise(plan.order)), "chunks interleave"
    for log in run_workers(3, lambda transport: watched(plan, delayed(seed)(transport), steps(3))):
        assert [event.send for event in log.of(SendStarted)] == list(plan.order) * 3


@pytest.mark.parametrize("in_flight", [1, 2, 5, 16])
@pytest.mark.parametrize("size", [2, 4])
def test_no_delay_leads_to_a_deadlock_or_changes_a_bit(in_flight, size):
    request = plain_request(overrides=MIXED, chunk_bytes=(200.0,), in_flight=in_flight)
    plan = shuffled_order(plan_of(DEEP, size, request), in_flight)
    expected = train(DEEP, "SGD", plan, steps=3)[0]

    def work(transport: Transport, seed: int) -> list[Tensor]:
        late = delayed(seed)(transport)
        worker = join(DEEP, plan, late, solver_of(DEEP, "SGD", DEEP.batch))
        steps(3)(worker, Log())
        worker.close()
        return values_of(worker.solver)

    for seed in range(3):
        values = run_workers(size, partial(work, seed=seed))
        assert_replicas(values)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(values[0], expected, strict=True))


@pytest.mark.parametrize("in_flight", [1, 3])
def test_no_more_than_in_flight_are_on_their_way(in_flight):
    plan = plan_of(DEEP, 3, plain_request(overrides=MIXED, chunk_bytes=(160.0,), in_flight=in_flight))
    plan = expecting(3600.0, plan)
    for log in run_workers(3, lambda transport: watched(plan, delayed(1)(transport), steps(3))):
        assert most_under_way(log) <= in_flight


def test_what_takes_longer_than_the_plan_says_loses_the_link():
    plan = expecting(0.0, plan_of(DEEP, 3, plain_request(overrides=MIXED, chunk_bytes=(160.0,), in_flight=1)))
    logs = run_workers(3, lambda transport: watched(plan, delayed(1)(transport), steps(3)))
    assert all(1 < most_under_way(log) <= 1 + MOST_LATE for log in logs)


@pytest.mark.parametrize("scheme", [Scheme.SERVER, Scheme.FACTOR_SERVER])
def test_the_link_is_not_kept_while_owners_update(scheme):
    """Owners do not get to update the first unit before all others have been pushed, one at a time."""
    plan = expecting(3600.0, plan_of(DEEP, 3, plain_request(scheme=scheme, in_flight=1)))
    first, *others = (send.unit for send in plan.order)

    def body(worker: Worker, log: Log) -> None:
        scheduler = worker.updates.scheduler
        apply = scheduler._apply

        def late(parts: list[Part], context: object) -> None:
            if any(part.member.name in plan.units[first].params for part in parts):
                log.wait_for(lambda entries: {e.unit for e in entries if isinstance(e, SendReduced)} >= set(others))
            apply(parts, context)

        scheduler._apply = late
        steps(1)(worker, log)

    for log in run_workers(3, lambda transport: watched(plan, transport, body)):
        applied = next(place for place, e in enumerate(log.entries) if isinstance(e, SendApplied) and e.unit == first)
        assert {e.unit for e in log.entries[:applied] if isinstance(e, SendReduced)} == {first, *others}


def expecting(seconds: float, plan: CommPlan) -> CommPlan:
    """The plan with every unit said to take so long."""
    return replace(plan, units=tuple(replace(unit, seconds=seconds) for unit in plan.units))


def most_under_way(log: Log) -> int:
    most, under_way = 0, set[Send]()
    for entry in log.entries:
        if isinstance(entry, SendStarted):
            under_way.add(entry.send)
        elif isinstance(entry, SendLeft):
            under_way.discard(entry.send)
        most = max(most, len(under_way))
    return most


def test_every_unit_goes_through_its_events_in_order():
    plan = plan_of(DEEP, 2, plain_request(overrides=MIXED, chunk_bytes=(160.0,)))
    for log in run_workers(2, lambda transport: watched(plan, delayed(5)(transport), steps(2))):
        for unit in plan.units:
            num_sends = sum(send.unit == unit.index for send in plan.order)
            kinds = [type(e) for e in log.entries if getattr(e, "unit", None) == unit.index]
            kinds = [kind for kind in kinds if kind not in (WaitStarted, WaitEnded)]
            each = [SendStarted, SendLeft, SendReduced, SendApplied]
            for once in (kinds[: len(kinds) // 2], kinds[len(kinds) // 2 :]):
                assert once[0] is UnitReady
                assert once[-1] is UnitDone
                assert sorted(map(str, once[1:-1])) == sorted(map(str, each * num_sends))
            for send in (send for send in plan.order if send.unit == unit.index):
                own = [type(e) for e in log.entries if getattr(e, "send", None) == send]
                assert own == each * 2


# -- barrier ----------------------------------------------------------------------------------------------------------
def test_behind_a_barrier_nothing_is_applied_before_all_is_reduced():
    plan = plan_of(CLIPPED, 3, plain_request(overrides=(Override("fc2", Scheme.SERVER),), chunk_bytes=(64.0,)))
    assert plan.barrier
    num_sends = len(plan.order)
    for log in run_workers(3, lambda transport: watched(plan, delayed(2)(transport), steps(4), CLIPPED)):
        kinds = [type(entry) for entry in log.entries if type(entry) in (SendReduced, SendApplied)]
        assert kinds == ([SendReduced] * num_sends + [SendApplied] * num_sends) * 4


def test_behind_a_barrier_forward_waits_layer_by_layer_too():
    case = replace(DEEP, name="deep clipped", settings="clip_gradients: 0.01")
    plan = plan_of(case, 2, plain_request(scheme=Scheme.SERVER))
    units = units_of(plan, ["fc8"])

    def work(transport: Transport) -> Log:
        released = threading.Event()

        def body(worker: Worker, log: Log) -> None:
            watcher = threading.Thread(
                target=lambda: (log.wait_for(lambda entries: WaitStarted(*units) in entries), released.set())
            )
            watcher.start()
            steps(2)(worker, log)
            watcher.join()

        return watched(plan, HoldingTransport(transport, plan, units, released, channels=[PULL]), body, case)

    for log in run_workers(2, work):
        assert log.position(("forward", "fc7"), 1) < log.position(WaitStarted(*units))
        assert log.position(UnitDone(*units)) < log.position(("forward", "fc8"), 1)


def test_gathers_need_none_of_the_schedulers_threads():
    """The thread that computes begins a gather whose turn it is, and one of the engine's applies its sum."""
    plan = expecting(3600.0, plan_of(MLP, 2, plain_request(scheme=Scheme.FACTORS)))  # patience is never over
    assert {unit.scheme for unit in plan.units} == {Scheme.FACTORS}

    def work(transport: Transport) -> list[tuple[type, str]]:
        seen: list[tuple[type, str]] = []
        computing = threading.current_thread().name

        def listen(event: CommEvent) -> None:
            name = threading.current_thread().name
            seen.append((type(event), "compute" if name == computing else name.rstrip("-0123456789")))

        worker = join(MLP, plan, transport, solver_of(MLP, "SGD", MLP.batch), listener=listen)
        steps(3)(worker, Log())
        worker.close()
        return seen

    for seen in run_workers(2, work):
        starting = {name for kind, name in seen if kind is SendStarted}
        applying = {name for kind, name in seen if kind is SendApplied}
        assert "compute" in starting
        assert "poseidon-starter" not in starting
        assert applying - {"poseidon-finisher"}, "only what was over before anything could follow it is handed on"
        assert not applying & {"compute", "poseidon-starter"}
