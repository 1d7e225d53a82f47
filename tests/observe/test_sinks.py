"""Prometheus, read by its own parser; Weights & Biases, by a module in its place; what is not there is said."""

from __future__ import annotations

import http.client
import math
import sys
import types

import pytest
from prometheus_client.parser import text_string_to_metric_families

from poseidon.errors import UsageError
from poseidon.observe.options import ObserveOptions
from poseidon.observe.prometheus import Prometheus
from poseidon.observe.sinks import open_sinks
from poseidon.observe.wandb import Wandb
from poseidon.record import Facts, Metric, WorkerFigures

FACTS = Facts("run", ("poseidon", "train"), 0.0, configuration={"base_lr": "0.1"}, cluster={"workers": 2, "nodes": []})
METRIC = Metric(
    "train", 100, 1.0, {"loss": 0.5, 'a "b"\\\n': 1.0, "none": None}, math.nan, 0.01, 640.0, 0.1,
    (WorkerFigures(0, 0.06, 0.04, 1000.0, 2000.0, 1.5), WorkerFigures(1, 0.1, 0.0, 3000.0, math.inf)),
)  # fmt: skip


@pytest.fixture
def served():
    sink = Prometheus("127.0.0.1", 0)
    yield sink
    sink.end(FACTS)


def fetched(sink, path="/metrics"):
    connection = http.client.HTTPConnection("127.0.0.1", sink.port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer, answer.read().decode()


def test_figures_as_prometheus_reads_them(served):
    served.begin(FACTS)
    served.write(Metric("train", 90, 1.0, {"loss": 9.0}, 9.0))
    served.write(METRIC)
    served.write(Metric("test", 100, 1.0, {"accuracy": 0.9}, net_index=1))
    answer, text = fetched(served)
    assert (answer.status, answer.getheader("Content-Type")) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert all(family.type == "gauge" for family in text_string_to_metric_families(text))
    assert math.isnan(found.pop(("poseidon_loss", (("net", "0"), ("phase", "train")))))
    rank = [(("rank", str(rank)),) for rank in range(2)]
    assert found == {
        ("poseidon_run_info", (("kind", "run"), ("version", ""), ("workers", "2"))): 1,
        ("poseidon_iteration", (("phase", "train"),)): 100,
        ("poseidon_iteration", (("phase", "test"),)): 100,
        ("poseidon_output", (("name", "loss"), ("net", "0"), ("phase", "train"))): 0.5,
        ("poseidon_output", (("name", 'a "b"\\\n'), ("net", "0"), ("phase", "train"))): 1,
        ("poseidon_output", (("name", "accuracy"), ("net", "1"), ("phase", "test"))): 0.9,
        ("poseidon_learning_rate", ()): 0.01,
        ("poseidon_samples_per_second", ()): 640,
        ("poseidon_iteration_seconds", ()): 0.1,
        ("poseidon_worker_compute_seconds", rank[0]): 0.06,
        ("poseidon_worker_wait_seconds", rank[0]): 0.04,
        ("poseidon_worker_sent_bytes", rank[0]): 1000,
        ("poseidon_worker_received_bytes", rank[0]): 2000,
        ("poseidon_worker_staleness", rank[0]): 1.5,
        ("poseidon_worker_compute_seconds", rank[1]): 0.1,
        ("poseidon_worker_wait_seconds", rank[1]): 0,
        ("poseidon_worker_sent_bytes", rank[1]): 3000,
        ("poseidon_worker_received_bytes", rank[1]): math.inf,
        ("poseidon_worker_staleness", rank[1]): 0,
    }


def test_nothing_else_is_served(served):
    assert served.line == f"metrics   http://127.0.0.1:{served.port}/metrics"
    answer, _ = fetched(served, "/etc/passwd")
    assert answer.status == 404
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.request("POST", "/metrics", b"x")
    assert connection.getresponse().status == 501


def test_a_port_that_is_taken_is_named(served):
    with pytest.raises(UsageError, match=rf"--metrics-port={served.port}: cannot serve .* choose another port"):
        Prometheus("127.0.0.1", served.port)
    with pytest.raises(UsageError, match=r"cannot serve figures at 203\.0\.113\.7"):
        Prometheus("203.0.113.7", 0)


class FakeRun:
    def __init__(self, told):
        self.told, self.summary = told, {}

    def log(self, values, step):
        self.told.append((step, values))

    def finish(self, exit_code):
        self.told.append((exit_code, self.summary))


def test_weights_and_biases_are_told(monkeypatch):
    told = []

    def init(**options):
        told.append(options)
        return FakeRun(told)

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    sink = Wandb("digits")
    sink.begin(FACTS)
    sink.write(Metric("test", 100, 1.0, {"accuracy": 0.9}))
    sink.end(Facts("run", (), 0.0, outcome="failed: disk full"))
    assert told == [
        {"project": "digits", "config": {"base_lr": "0.1", "workers": 2, "command": "poseidon train"}},
        (100, {"test/accuracy": 0.9}),
        (1, {"outcome": "failed: disk full"}),
    ]


def test_weights_and_biases_that_do_not_begin(monkeypatch):
    def init(**options):
        raise RuntimeError("no login")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    with pytest.raises(UsageError, match="--wandb=digits: Weights & Biases does not begin: no login"):
        Wandb("digits").begin(FACTS)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"pip install wandb.*or leave --wandb out"):
        Wandb("digits")


def test_what_is_asked_for_is_opened(tmp_path):
    assert open_sinks(ObserveOptions(), None) == []
    sinks = open_sinks(ObserveOptions(metrics_port=0, tensorboard=str(tmp_path)), None)
    assert [type(sink).__name__ for sink in sinks] == ["Prometheus", "TensorBoard"]
    for sink in sinks:
        sink.end(FACTS)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"histograms": 5}, "--tensorboard FOLDER too"), ({"metrics_port": 70000}, "from 0 .any. to 65535, got 70000")],
)
def test_what_makes_no_sense_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        ObserveOptions(**options)
