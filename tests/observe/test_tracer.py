"""The tracer: runs on a clock that ticks with every look at it, so that each event's times are known beforehand."""

from __future__ import annotations

import itertools

import pytest

from poseidon.comm.events import (
    SendApplied,
    SendReduced,
    SendStarted,
    UnitDone,
    UnitReady,
    WaitEnded,
    WaitStarted,
)
from poseidon.observe.tracer import Tracer, Window
from poseidon.plan import Cluster, CommPlan, PlanRequest, Scheme, Send, Unit, make_plan
from poseidon.record import Event, Trace
from poseidon.record.timeline import chrome_events
from poseidon.run.distribute import distribute
from poseidon.run.layer_times import estimated_times
from poseidon.run.profile import profile_net
from poseidon.solver import Solver, events
from poseidon.transport.inproc import run_workers
from tests.record import chrome_format
from tests.solver.small import net_message, solver_message, write_data


def ticking():
    return itertools.count().__next__


def small_solver(tmp_path, text="", **net):
    return Solver(solver_message(net_message(write_data(tmp_path), **net), text))


# -- one worker -------------------------------------------------------------------------------------------------------
# Looks at the clock: 0 when it is made, 1 on_start, two for each layer forward, one for each backward and one at the
# end of the pass, one when gradients are ready, one at the end.
ONE_ITERATION = [
    Event("forward", "rows", 0, 2, 1),
    Event("forward", "fc1", 0, 4, 1),
    Event("forward", "tanh", 0, 6, 1),
    Event("forward", "fc2", 0, 8, 1),
    Event("forward", "loss", 0, 10, 1),
    Event("backward", "loss", 0, 12, 1),
    Event("backward", "fc2", 0, 13, 1),
    Event("backward", "tanh", 0, 14, 1),
    Event("backward", "fc1", 0, 15, 1),
    Event("update", "", 0, 17, 1),
    Event("iteration", "", 0, 1, 17),
]


def test_an_iteration_of_one_worker(tmp_path):
    solver = small_solver(tmp_path)
    tracer = Tracer(Window(), now=ticking())
    tracer.attach(solver)
    solver.step(1)
    assert tracer.num_recorded == len(ONE_ITERATION)
    assert tracer.take() == ONE_ITERATION
    assert tracer.take() == []


def test_only_the_window_is_recorded(tmp_path):
    solver = small_solver(tmp_path)
    tracer = Tracer(Window(2, 4), now=ticking())
    tracer.attach(solver)
    solver.step(6)
    found = tracer.take()
    assert len(found) == 2 * len(ONE_ITERATION)
    assert {event.iteration for event in found} == {2, 3}
    assert [(event.kind, event.name) for event in found if event.iteration == 3] == [
        (event.kind, event.name) for event in ONE_ITERATION
    ]


def test_every_pass_of_an_iteration_is_seen(tmp_path):
    solver = small_solver(tmp_path, "iter_size: 3 test_interval: 1 test_iter: 2")
    tracer = Tracer(Window(), now=ticking())
    tracer.attach(solver)
    solver.step(1)
    kinds = [(event.kind, event.name) for event in tracer.take()]
    one_pass = [(event.kind, event.name) for event in ONE_ITERATION[:9]]
    assert kinds == [*(one_pass * 3), ("update", ""), ("iteration", "")]


def test_a_solver_is_left_as_it_was(tmp_path):
    """And a traced run computes what one that is not traced does."""
    solver, other = (small_solver(tmp_path, shuffle=True, dropout=0.5) for _ in range(2))
    before = (solver.run, list(solver.listeners), solver.net.program.observer)
    tracer = Tracer(Window())
    tracer.attach(solver)
    solver.step(5)
    tracer.detach(solver)
    other.step(5)
    assert (solver.run, solver.listeners, solver.net.program.observer) == before
    assert solver.callbacks == []
    for one, two in zip(solver.net.parameters(), other.net.parameters(), strict=True):
        assert one.equal(two)
    tracer.take()
    solver.step(1)
    assert tracer.take() == []


def test_a_restored_run_counts_on(tmp_path):
    solver = small_solver(tmp_path)
    tracer = Tracer(Window(100, 102), now=ticking())
    tracer.attach(solver)
    solver.publish(events.Restored("x", 100, True))
    solver.iter = 100
    solver.step(1)
    assert {event.iteration for event in tracer.take()} == {100}


# -- several ----------------------------------------------------------------------------------------------------------
def unit_of(index, scheme, num_elems, bytes_sent):
    name = f"layer{index}/0"
    return Unit(index, (name,), ((num_elems,),), num_elems, scheme, 0, None, bytes_sent, 0.0, "")


RING, SERVER = unit_of(0, Scheme.RING, 10, 1000), unit_of(1, Scheme.SERVER, 4, 600)
HALVES, WHOLE = (Send(0, 0, 4), Send(0, 4, 10)), Send(1, 0, 4)


def plan_of(*, barrier=False, pattern="collective"):
    units = (RING, SERVER) if pattern == "collective" else (unit_of(0, Scheme.TREE, 10, 1000), SERVER)
    cluster = Cluster((1, 1), bandwidth_bps=1e9)
    return CommPlan(units, (*HALVES, WHOLE), barrier, cluster, "fp32", 4, 1.0, 1.0, pattern=pattern)


def play(tracer, *heard):
    """Iteration 0 as the scheduler tells it, then what is left of it in iteration 1."""
    tracer.on_start()  # 1
    for event in heard:
        tracer.hear_comm(event)
    return tracer.take()


def test_exchanges_of_several_workers():
    tracer = Tracer(Window(), plan_of(), ticking())
    found = play(
        tracer,
        UnitReady(1),  # 2
        SendStarted(1, WHOLE),  # 3
        UnitReady(0),  # 4
        SendStarted(0, HALVES[0]),  # 5
        SendStarted(0, HALVES[1]),  # 6
        SendReduced(1, WHOLE, 310),  # 7
        SendReduced(0, HALVES[0], 400),  # 8
        WaitStarted(0),  # 9
        SendApplied(1, WHOLE, 290),  # 10
        UnitDone(1),  # 11
        SendApplied(0, HALVES[0]),  # 12
        SendReduced(0, HALVES[1], 600),  # 13
        SendApplied(0, HALVES[1]),  # 14
        UnitDone(0),  # 15
        WaitEnded(0),  # 16
    )
    ring, server = "layer0/0", "layer1/0"
    assert found == [
        Event("ready", server, 0, 2, unit=1),
        Event("start", server, 0, 3, unit=1),
        Event("ready", ring, 0, 4, unit=0),
        Event("start", ring, 0, 5, unit=0),
        Event("move", server, 0, 3, 4, 310, 1, 0),
        Event("move", ring, 0, 5, 3, 400, 0, 0),
        Event("move", server, 0, 7, 3, 290, 1, 0),
        Event("end", server, 0, 11, unit=1),
        Event("update", ring, 0, 8, 4, None, 0, 0),
        Event("move", ring, 0, 6, 7, 600, 0, 1),
        Event("update", ring, 0, 13, 1, None, 0, 1),
        Event("end", ring, 0, 15, unit=0),
        Event("wait", ring, 0, 9, 7, unit=0),
    ]


def test_an_exchange_belongs_to_the_iteration_of_its_gradient():
    """Also where the next iteration's gradient is final before the exchange is over, as with bounded staleness."""
    tracer = Tracer(Window(0, 1), plan_of(), ticking())
    assert [event.kind for event in play(tracer, UnitReady(1), SendStarted(1, WHOLE))] == ["ready", "start"]
    tracer.hear_solver(events.IterationDone(0, None, None, 0.0))
    assert [event.kind for event in tracer.take()] == ["iteration"]
    later = [SendStarted(1, WHOLE), SendReduced(1, WHOLE), SendApplied(1, WHOLE), UnitDone(1)]
    found = play(tracer, UnitReady(1), *later, *later[1:], WaitStarted(1), WaitEnded(1))
    assert [(event.kind, event.iteration) for event in found] == [("move", 0), ("move", 0), ("end", 0)]


def test_what_is_held_back_by_a_barrier_has_not_moved():
    tracer = Tracer(Window(), plan_of(barrier=True), ticking())
    found = play(tracer, UnitReady(1), SendStarted(1, WHOLE), SendReduced(1, WHOLE))  # 2, 3, 4
    tracer.on_gradients_ready()  # 5
    found += play(tracer, SendApplied(1, WHOLE), UnitDone(1))  # 6 (on_start), 7, 8
    moves = [(event.start_s, event.duration_s) for event in found if event.kind == "move"]
    assert moves == [(3, 1), (5, 2)]


def test_notified_puts_are_one_move():
    tracer = Tracer(Window(), plan_of(pattern="gpi"), ticking())
    arrival = SendReduced(1, WHOLE), SendApplied(1, WHOLE, 600), UnitDone(1)
    found = play(tracer, UnitReady(1), SendStarted(1, WHOLE), *arrival)
    moves = [(event.start_s, event.duration_s, event.num_bytes) for event in found if event.kind == "move"]
    assert moves == [(3, 2, 600)]
    assert [event.kind for event in found] == ["ready", "start", "move", "end"]


def test_what_began_before_anybody_listened_is_left_out():
    tracer = Tracer(Window(), plan_of(), ticking())
    assert play(tracer, SendStarted(1, WHOLE), SendReduced(1, WHOLE), SendApplied(1, WHOLE), UnitDone(1)) == []


@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER, Scheme.FACTORS])
def test_real_exchanges_give_a_sound_timeline(tmp_path, scheme):
    """Two workers: every unit in every iteration is ready, started, moved and ended, in that order; and the merged
    timeline keeps the rules of its format."""
    param = solver_message(net_message(write_data(tmp_path)))

    def work(transport):
        solver = Solver(param)
        profile = profile_net(solver.net, estimated_times(solver.net, 1e9))
        plan = make_plan(profile, Cluster((1, 1), bandwidth_bps=1e9), PlanRequest(scheme=scheme))
        tracer = Tracer(Window(1, 4), plan)
        tracer.attach(solver)
        with distribute(solver, transport, plan, listener=tracer.hear_comm):
            solver.step(5)
        return plan, Trace(transport.rank, "here", 0.0, 0.0, 0.0, tuple(sorted(tracer.take(), key=lambda e: e.start_s)))

    results = run_workers(2, work, timeout_s=60)
    for plan, trace in results:
        assert trace.iterations == (1, 2, 3)
        for iteration in trace.iterations:
            for unit in plan.units:
                own = [e for e in trace.of_iteration(iteration) if e.unit == unit.index and not e.is_compute]
                moves = [event for event in own if event.kind == "move"]
                ready, start, end = (next(e for e in own if e.kind == kind) for kind in ("ready", "start", "end"))
                assert ready.start_s <= start.start_s == min(move.start_s for move in moves)
                assert max(move.end_s for move in moves) <= end.start_s + 1e-9
                num_sends = sum(send.unit == unit.index for send in plan.order)
                assert len(moves) == num_sends * (2 if scheme is Scheme.SERVER else 1)
                assert sum(move.num_bytes for move in moves) == pytest.approx(unit.bytes_sent, abs=len(moves))
            names = [e.name for e in trace.of_iteration(iteration) if e.kind == "backward"]
            assert names == ["loss", "fc2", "tanh", "fc1"]
    entries = list(chrome_events([trace for _, trace in results]))
    chrome_format.check({"traceEvents": entries})
    assert sum(entry["ph"] == "f" for entry in entries) == sum(3 * len(plan.units) for plan, _ in results)
