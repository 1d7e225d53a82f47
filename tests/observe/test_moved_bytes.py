"""The bytes of moves are what really left: their sum is the growth of the transport's own counter, and a plan that
predicts something else changes nothing about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poseidon.observe.tracer import Tracer, Window
from poseidon.plan import CommPlan, PlanRequest, Scheme
from poseidon.record import Trace
from poseidon.report.traffic import traffic_of
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from tests.comm.nets import DEEP, LENET, WORDS, Case
from tests.comm.training import join, on_nodes, plain_request, plan_of, solver_of

FIRST, STOP = 1, 4


def train(case: Case, plan: CommPlan, told: CommPlan | None = None) -> list[tuple[int, Trace]]:
    """What each worker sends in the recorded iterations, by its transport's counter, and its trace; the tracer is
    `told` another plan, if there is one."""

    def work(flat: Transport) -> tuple[int, Trace]:
        transport = on_nodes(flat, plan)
        solver = solver_of(case, "SGD", case.batch)
        tracer = Tracer(Window(FIRST, STOP), told or plan)
        worker = join(case, plan, transport, solver, listener=tracer.hear_comm)
        tracer.attach(solver)
        counters = []
        for steps in (FIRST, STOP - FIRST):
            solver.step(steps)
            worker.updates.drain()
            transport.barrier(60.0)  # all have what they need: nothing is left that a slow peer was waited for with
            counters.append(transport.bytes_sent + worker.updates.put_bytes)
        solver.step(1)  # which is not recorded
        worker.updates.drain()
        worker.close()
        return counters[1] - counters[0], Trace(transport.rank, "here", 0.0, 0.0, 0.0, tuple(tracer.take()))

    return run_workers(plan.cluster.num_workers, work, timeout_s=60)


def moved(trace: Trace) -> int:
    assert {event.iteration for event in trace.events if event.kind == "move"} == set(range(FIRST, STOP))
    return sum(event.num_bytes for event in trace.events if event.kind == "move")


CHOICES = [
    (LENET, 3, PlanRequest(scheme=Scheme.RING)),
    (LENET, 3, PlanRequest(scheme=Scheme.DOUBLING)),
    (LENET, 3, PlanRequest(scheme=Scheme.SERVER, chunk_bytes=(200.0,))),
    (LENET, 2, plain_request(scheme=Scheme.FACTORS)),
    (LENET, 3, plain_request(scheme=Scheme.FACTOR_SERVER)),
    (LENET, 3, PlanRequest(scheme=Scheme.RING, wire="bf16")),
    (LENET, 2, PlanRequest(scheme=Scheme.SERVER, wire="bf16")),
    (WORDS, 2, plain_request(scheme=Scheme.ROWS)),
    (DEEP, 3, plain_request(pattern="gpi", scheme=Scheme.SERVER)),
    (DEEP, 3, plain_request(pattern="gpi", scheme=Scheme.TREE)),
    (DEEP, 3, plain_request(pattern="gpi", scheme=Scheme.FACTORS)),
    (LENET, (2, 1), PlanRequest(scheme=Scheme.RING)),
    (LENET, (2, 2), PlanRequest(scheme=Scheme.SERVER)),
    (LENET, (1, 2), plain_request(scheme=Scheme.FACTOR_SERVER)),
    (WORDS, (2, 1), plain_request(scheme=Scheme.ROWS)),
]


@pytest.mark.parametrize(("case", "size", "request_"), CHOICES)
def test_moves_have_the_bytes_that_the_transport_has_counted(case, size, request_):
    plan = plan_of(case, size, request_)
    results = train(case, plan)
    assert any(sent for sent, _ in results)
    for sent, trace in results:
        assert moved(trace) == sent


def test_a_plan_that_is_wrong_is_found_out():
    """The workers exchange by one plan; the report is given another, which predicts half for each unit."""
    plan = plan_of(LENET, 2, plain_request(scheme=Scheme.RING))
    wrong = replace(plan, units=tuple(replace(unit, bytes_sent=unit.bytes_sent // 2) for unit in plan.units))
    traces = [trace for _, trace in train(LENET, plan, told=wrong)]
    assert [one.ratio for one in traffic_of(plan, traces)] == pytest.approx([1.0] * len(plan.units), abs=0.01)
    assert [one.ratio for one in traffic_of(wrong, traces)] == pytest.approx([2.0] * len(plan.units), abs=0.1)


def test_workers_of_a_node_are_added_up():
    plan = plan_of(LENET, (2, 2), plain_request(scheme=Scheme.FACTOR_SERVER))
    results = train(LENET, plan)
    found = traffic_of(plan, [trace for _, trace in results], [(0, 1), (2, 3)])
    by_node = [sum(sent for sent, _ in results[first : first + 2]) / (STOP - FIRST) for first in (0, 2)]
    assert max(by_node) <= sum(one.measured_bytes for one in found) <= sum(by_node)
    assert all(one.ratio == pytest.approx(1.0, abs=0.1) for one in found)
