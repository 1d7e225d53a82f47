"""Whole runs, watched: what one worker and a team of them leave in their folder, and what they compute meanwhile."""

from __future__ import annotations

import json

import pytest
import torch

from poseidon.errors import RecordError, WorkersFailed
from poseidon.observe.options import ObserveOptions
from poseidon.observe.tracer import Window
from poseidon.plan import CommPlan, Scheme
from poseidon.record import read
from poseidon.run.distribute import DistributeOptions, distribute
from poseidon.run.observation import Observation
from poseidon.run.roundtable import Roundtable
from poseidon.run.seat import Seat
from poseidon.run.tracing import traced_window
from poseidon.solver import Action, Solver
from poseidon.transport.inproc import run_workers
from tests.run.jobs import plan_for
from tests.solver.small import net_message, solver_message, write_data

SETTINGS = "max_iter: 20 display: 5 test_interval: 10 test_iter: 2"


def solved(observation, solver):
    observation.join()
    solver.solve()


def alone(param, options):
    solver = Solver(param)
    with Observation(solver, options, Seat(host="here")) as observation:
        solved(observation, solver)


def in_team(size, param, options_of):
    """What each of `size` workers has learnt; `options_of` gives each rank's options."""

    def work(transport):
        solver = Solver(param)
        plan = plan_for(solver, size, Scheme.RING)
        seat = Seat(Roundtable(transport), plan, {"nodes": [{"host": "a", "ranks": [0]}]}, f"h{transport.rank}")
        with Observation(solver, options_of(transport.rank), seat) as observation:
            listener = observation.heard_by(lambda event: None)
            with distribute(solver, transport, plan, DistributeOptions(agree_s=0), listener=listener) as distribution:
                observation.join(distribution.meter)
                solver.solve()
        return [value.detach().clone() for value in solver.net.parameters()]

    return run_workers(size, work, timeout_s=60)


@pytest.fixture
def param(tmp_path):
    return solver_message(net_message(write_data(tmp_path)), SETTINGS)


def test_one_worker_leaves_a_record(tmp_path, param):
    options = ObserveOptions(str(tmp_path / "r"), command=("poseidon", "train"), configuration={"--gpu": "0"})
    alone(param, options)
    run = read(tmp_path / "r")
    facts = run.facts
    assert (facts.kind, facts.command, facts.outcome) == ("run", ("poseidon", "train"), "trained to iteration 20")
    assert facts.finished >= facts.started
    assert facts.configuration["base_lr"] == "0.05"
    assert facts.configuration["--gpu"] == "0"
    assert facts.net.startswith('name: "small"')
    assert "Split" not in facts.net
    assert facts.shapes["params"]["fc1/0"] == (5, 3)
    assert facts.cluster["workers"] == 1
    assert facts.plan is None
    shown = [(metric.phase, metric.iteration) for metric in run.metrics]
    trained = [("train", iteration) for iteration in (0, 5, 10, 15)]
    assert shown == [("test", 0), *trained[:2], ("test", 10), *trained[2:], ("test", 20)]
    (worker,) = run.training[-1].workers
    assert worker.wait_s == worker.sent_bytes == 0
    assert run.training[-1].samples_per_second == pytest.approx(4 / worker.compute_s)
    (trace,) = run.traces
    assert trace.host == "here"
    assert trace.iterations == (7, 8, 9, 10, 11)  # in the middle


@pytest.mark.parametrize(
    ("first", "stop", "window"),
    [(0, 1000, (10, 15)), (500, 1000, (510, 515)), (0, 20, (7, 12)), (0, 5, (0, 5)), (0, 3, (0, 3)), (9, 9, (9, 9))],
)
def test_a_few_iterations_are_traced(first, stop, window):
    assert traced_window(first, stop) == Window(*window)


def test_a_team_leaves_one_record(tmp_path, param):
    """Each rank has a folder of its own, as on hosts that share none; rank 0's options count."""

    def options_of(rank):
        return ObserveOptions(str(tmp_path / "r"), all_iterations=True) if rank == 0 else ObserveOptions()

    watched = in_team(3, param, options_of)
    run = read(tmp_path / "r")
    assert CommPlan.from_json(run.facts.plan_json()).cluster.num_workers == 3
    assert [(trace.rank, trace.host) for trace in run.traces] == [(0, "h0"), (1, "h1"), (2, "h2")]
    assert all(trace.iterations == tuple(range(20)) for trace in run.traces)
    assert all(trace.uncertainty_s == 0 for trace in run.traces)  # one process, one clock
    assert [metric.iteration for metric in run.training] == [0, 5, 10, 15]
    plan = CommPlan.from_json(run.facts.plan_json())
    for metric in run.training[1:]:
        assert [worker.rank for worker in metric.workers] == [0, 1, 2]
        for worker in metric.workers:
            assert worker.compute_s > 0
            assert worker.sent_bytes == pytest.approx(plan.bytes_sent, rel=0.5)  # exchanges end in the next clock
    starts = [next(e.start_s for e in t.events if e.kind == "iteration" and e.iteration == 19) for t in run.traces]
    assert max(starts) - min(starts) < 5  # on one clock, however slow the machine is
    unwatched = in_team(3, param, lambda rank: ObserveOptions())
    for one, other in zip(watched, unwatched, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_folder_that_is_taken_stops_all_alike(tmp_path, param):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(WorkersFailed, match="holds the record of another run"):
        in_team(2, param, lambda rank: ObserveOptions(str(tmp_path)))
    with pytest.raises(RecordError, match="holds the record of another run"):
        alone(param, ObserveOptions(str(tmp_path)))


def test_a_failure_is_recorded(tmp_path, param):
    solver = Solver(param)
    solver.action = lambda: {0: Action.NONE, 1: Action.NONE}[solver.iter]
    observation = Observation(solver, ObserveOptions(str(tmp_path / "r")), Seat())
    with pytest.raises(KeyError), observation:
        solved(observation, solver)
    run = read(tmp_path / "r")
    assert run.facts.outcome == "failed: KeyError: 2"
    assert run.training[0].iteration == 0


def test_a_run_that_goes_on_goes_on_in_its_folder(tmp_path, param):
    options = ObserveOptions(str(tmp_path / "r"))
    alone(param, options)
    started = read(tmp_path / "r").facts.started
    later = ObserveOptions(str(tmp_path / "r"), continues=True)
    param.max_iter = 30
    alone(param, later)
    run = read(tmp_path / "r")
    assert run.facts.started == started
    assert [metric.iteration for metric in run.training] == [0, 5, 10, 15, 20, 25]
    assert json.loads((tmp_path / "r" / "run.json").read_text())["outcome"] == "trained to iteration 30"


def test_a_solver_is_left_as_it_was(tmp_path, param):
    solver = Solver(param)
    before = (solver.team, solver.run, solver.net.program.observer)
    for turn in range(2):
        with Observation(
            solver, ObserveOptions(str(tmp_path / f"r{turn}"), all_iterations=True), Seat()
        ) as observation:
            observation.join()
            solver.step(2)
        assert (solver.team, solver.run, solver.net.program.observer) == before
        assert solver.listeners == solver.callbacks == []
        assert read(tmp_path / f"r{turn}").traces[0].iterations == (2 * turn, 2 * turn + 1)


def test_a_run_nobody_watches_is_left_alone(tmp_path, param):
    solver = Solver(param)
    with Observation(solver, ObserveOptions(), Seat()) as observation:
        observation.join()
        assert solver.listeners == []
        assert solver.callbacks == []
        assert solver.net.program.observer is None
