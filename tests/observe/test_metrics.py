"""Metrics made of a solver's events and the workers' efforts; efforts that travel with means; run folders."""

from __future__ import annotations

import json

import pytest
import torch

from poseidon.errors import RecordError
from poseidon.observe.effort import Effort, EffortTeam
from poseidon.observe.folder import RunFolder
from poseidon.observe.metrics import Metrics, named_outputs
from poseidon.observe.sink import Lasting
from poseidon.record import Facts, Metric, WorkerFigures, read
from poseidon.solver import events
from poseidon.solver.events import OutputValue
from poseidon.solver.team import Alone


class Kept:
    """A sink that keeps what it is told; `problem` is raised instead."""

    line = ""

    def __init__(self, problem=None):
        self.told, self._problem = [], problem

    def begin(self, facts):
        self.write(facts)

    def write(self, metric):
        if self._problem is not None:
            raise self._problem
        self.told.append(metric)

    def end(self, facts):
        self.write(facts)


def shown(iteration, loss):
    return events.IterationShown(iteration, loss, 1.0, 10, 10, (OutputValue("loss", loss, 1.0),))


def test_metrics_put_together_what_solver_and_workers_tell():
    efforts = [(Effort(), Effort()), (Effort(10, 0.5, 0.5, 4000, 2000), Effort(10, 0.8, 0.0, 6000, 0))]
    efforts.append((Effort(12, 0.9, 0.7, 4000, 2600, 3.0), Effort(12, 0.9, 0.1, 6000, 400)))
    seconds, sink = iter((1001.0, 1002.0, 1002.5, 1003.0)), Kept()
    metrics = Metrics([sink], lambda: efforts.pop(0), 128, 1000.0, lambda: next(seconds))
    metrics(shown(0, 2.0))
    metrics(events.RateShown(0, 0.1))
    metrics(shown(10, 1.0))
    metrics(events.RateShown(10, 0.05))
    metrics(events.TestDone(11, 1, 0.75, (OutputValue("accuracy", 0.5, 0.0),)))
    metrics(shown(12, float("nan")))
    assert len(sink.told) == 3  # the rate is still to come
    metrics(events.RateShown(12, 0.05))
    first, second, test, last = sink.told
    assert first == Metric("train", 0, 1.0, {"loss": 2.0}, 2.0, 0.1)
    assert second.workers == (WorkerFigures(0, 0.05, 0.05, 400, 200), WorkerFigures(1, 0.08, 0.0, 600, 0))
    assert second.iteration_seconds == pytest.approx(0.1)  # rank 0 took longest
    assert second.samples_per_second == pytest.approx(1280)
    assert test == Metric("test", 11, 2.5, {"accuracy": 0.5}, 0.75, net_index=1)
    assert last.workers[0].compute_s == pytest.approx(0.2)
    assert last.workers[1].received_bytes == pytest.approx(200)
    assert [worker.staleness for worker in last.workers] == [1.5, 0.0]


def test_outputs_have_names():
    outputs = [
        OutputValue("a", 1.0, 0.0),
        *(OutputValue("p", float(n), 0.0) for n in range(40)),
        OutputValue("z", 2.0, 1),
    ]
    named = named_outputs(outputs)
    assert list(named)[:3] == ["a", "p[0]", "p[1]"]
    assert named["p[31]"] == 31.0
    assert "p[32]" not in named
    assert named["z"] == 2.0


class Two(Alone):
    """Rank 1 of 2, whose partner has these values."""

    def __init__(self, others):
        super().__init__()
        self.rank, self._others = 1, others

    def mean(self, values):
        return [(own.double() + other) / 2 for own, other in zip(values, self._others, strict=True)]


def test_efforts_travel_with_what_is_averaged():
    table = torch.zeros(2, 6, dtype=torch.float64)
    table[0] = torch.tensor([7, 1.5, 0.25, 1e12 + 1, 3, 4], dtype=torch.float64)
    team = EffortTeam(Two([torch.tensor(1.0), torch.tensor([2.0, 4.0]), table]), 2, lambda: Effort(8, 2.5, 0.5, 10, 20))
    assert team.efforts == (Effort(), Effort())
    means = team.mean([torch.tensor(3.0), torch.tensor([0.0, 0.0])])
    assert [mean.tolist() for mean in means] == [2.0, [1.0, 2.0]]
    assert team.efforts == (Effort(7, 1.5, 0.25, 1e12 + 1, 3, 4), Effort(8, 2.5, 0.5, 10, 20))


def test_a_sink_that_fails_is_left_alone(caplog):
    sink = Lasting(Kept(OSError("no space left")))
    sink.write(Metric("train", 0, 0.0))
    sink.write(Metric("train", 1, 0.0))
    assert caplog.text.count("no space left; nothing more is told there, training goes on") == 1


def test_a_folder_belongs_to_one_run(tmp_path):
    folder = RunFolder(tmp_path / "r", continues=False)
    folder.begin(Facts("run", ("poseidon",), 5.0))
    folder.write(Metric("train", 0, 1.0))
    head = '{"rank": 3, "host": "b", "offset": 0.0, "uncertainty": 0.0, "origin": 0.0}\n'
    (tmp_path / "r" / "trace-3.jsonl").write_text(head)
    with pytest.raises(RecordError, match="holds the record of another run; name another folder"):
        RunFolder(tmp_path / "r", continues=False)
    later = RunFolder(tmp_path / "r", continues=True)
    assert later.started == 5.0
    assert later.line.endswith(f"; traces of the part before: {tmp_path / 'r' / 'part-1'}")
    assert read(tmp_path / "r").traces == ()
    (kept,) = read(tmp_path / "r" / "part-1").traces
    assert kept.rank == 3
    later.write(Metric("train", 10, 2.0))
    later.end(Facts("run", ("poseidon",), 5.0, 9.0, "trained to iteration 20"))
    run = read(tmp_path / "r")
    assert [metric.iteration for metric in run.metrics] == [0, 10]
    assert run.facts.outcome == "trained to iteration 20"
    assert json.loads((tmp_path / "r" / "run.json").read_text())["finished"] == 9.0
