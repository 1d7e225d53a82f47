"""A simulation's record is one that a run could have left."""

from __future__ import annotations

import pytest

from poseidon.plan import Cluster, CommPlan, make_plan
from poseidon.record import read
from poseidon.simulate import Machines, Straggler, Teller, Told, play, write_record
from tests.simulate.test_play import net


@pytest.fixture
def told(tmp_path):
    def tell(machines: Machines, iterations: int = 3):
        profile = net((0.01, 0.02, 300_000), (0.02, 0.03, 0), (0.01, 0.01, 900_000))
        plan = make_plan(profile, machines.cluster)
        teller = Teller(plan, profile, machines)
        played = play(plan, profile, machines, iterations, teller.listener)
        write_record(tmp_path, teller, played, Told(("poseidon", "simulate"), {"base_lr": "0.1"}, "name: 'x'", 32))
        return plan, played, read(tmp_path)

    return tell


def test_one_worker_for_all(told):
    plan, played, run = told(Machines(Cluster((1,) * 4, 1e9)))
    assert run.facts.kind == "simulation"
    assert run.facts.cluster["workers"] == run.num_workers == 4
    assert CommPlan.from_json(run.facts.plan_json()) == plan
    (trace,) = run.traces
    assert trace.rank == 0
    assert trace.iterations == (0, 1, 2)
    for iteration in range(3):
        events = trace.of_iteration(iteration)
        (whole,) = (event for event in events if event.kind == "iteration")
        assert whole.duration_s == pytest.approx(played.iteration_s[0][iteration], abs=1e-6)
        layers = [event.name for event in events if event.kind == "forward"]
        assert layers == ["l0", "l1", "l2"]
        assert [event.name for event in events if event.kind == "backward"] == layers[::-1]
        moves = [event for event in events if event.kind == "move"]
        assert sum(event.num_bytes for event in moves) == pytest.approx(plan.bytes_sent, abs=len(moves))
        for kind in ("ready", "start", "end"):
            assert {event.unit for event in events if event.kind == kind} == {unit.index for unit in plan.units}
    waits = [event for event in trace.events if event.kind == "wait"]
    assert sum(event.duration_s for event in waits) == pytest.approx(sum(played.wait_s[0]), abs=1e-5)


def test_metrics_tell_of_every_worker(told):
    _, played, run = told(Machines(Cluster((1,) * 4, 1e9), stragglers=(Straggler(2, 2.0),)))
    assert len(run.traces) == 4
    assert len(run.training) == 3
    last = run.training[-1]
    assert [figures.rank for figures in last.workers] == [0, 1, 2, 3]
    assert last.workers[2].compute_s > last.workers[1].compute_s
    assert last.workers[2].wait_s < last.workers[1].wait_s
    assert last.seconds == pytest.approx(max(sum(worker) for worker in played.iteration_s))
    assert last.samples_per_second == pytest.approx(4 * 32 / last.iteration_seconds)
    assert last.workers[0].sent_bytes == pytest.approx(played.bytes_sent[0] / 3)


def test_an_old_record_gives_way(told):
    told(Machines(Cluster((1,) * 4, 1e9), stragglers=(Straggler(2, 2.0),)))
    _, _, run = told(Machines(Cluster((1,) * 2, 1e9)), 2)
    assert len(run.traces) == 1
    assert len(run.training) == 2


def test_of_many_workers_some_leave_traces(told):
    _, _, run = told(Machines(Cluster((1,) * 40, 1e9), stragglers=(Straggler(39, 2.0),)), 2)
    ranks = [trace.rank for trace in run.traces]
    assert len(ranks) == 32
    assert 39 in ranks
    assert ranks[:31] == list(range(31))


def test_one_worker_alone(told):
    _, _, run = told(Machines(Cluster((1,), 1e9)))
    assert run.facts.plan is None
    assert {event.kind for event in run.traces[0].events} == {"forward", "backward", "iteration"}
