"""Run folders: text written down here is read, what is written has the text written down here, damage is named."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from poseidon.errors import RecordError
from poseidon.record import Event, Facts, Metric, MetricsWriter, Trace, TraceWriter, WorkerFigures, read, write_facts
from poseidon.record.reading import traced
from poseidon.record.timeline import chrome_events
from tests.record import chrome_format

FACTS = {
    "format": "poseidon-run/1",
    "kind": "run",
    "command": ["poseidon", "train", "--solver=s.prototxt"],
    "started": 1700000000.5,
    "finished": None,
    "outcome": None,
    "configuration": {"base_lr": "0.01"},
    "net": 'name: "n"',
    "cluster": {"workers": 2, "nodes": [{"host": "a", "ranks": [0, 1]}]},
    "plan": None,
}
TRAIN_LINE = (
    '{"phase": "train", "iteration": 100, "seconds": 2.5, "outputs": {"loss": 0.5, "worst": null}, "loss": 0.625, '
    '"lr": 0.01, "samples_per_second": 640.0, "iteration_seconds": 0.1, "workers": [{"rank": 0, "compute": 0.0625, '
    '"wait": 0.0375, "sent": 1000.0, "received": 2000.0, "staleness": 1.5}], "net": 0}\n'
)
TEST_LINE = '{"phase": "test", "iteration": 100, "seconds": 3.0, "outputs": {"accuracy": 0.9}}\n'
TRAIN_METRIC = Metric(
    "train",
    100,
    2.5,
    {"loss": 0.5, "worst": None},
    0.625,
    0.01,
    640.0,
    0.1,
    (WorkerFigures(0, 0.0625, 0.0375, 1000.0, 2000.0, 1.5),),
)
TRACE_TEXT = """{"rank": 1, "host": "b", "offset": 5.0, "uncertainty": 0.001, "origin": 1700000000.0}
{"k":"backward","n":"ip \\"1\\"","i":7,"t":1.5000000,"d":0.2500000}
{"k":"ready","n":"ip/0","i":7,"t":1.7500000,"u":3}
{"k":"move","n":"ip/0","i":7,"t":1.7500001,"d":0.0100000,"b":4096,"u":3,"c":0}
"""


def folder_of(tmp_path, metrics="", traces=(), facts=FACTS):
    (tmp_path / "run.json").write_text(json.dumps(facts))
    (tmp_path / "metrics.jsonl").write_text(metrics)
    for rank, text in enumerate(traces):
        (tmp_path / f"trace-{rank}.jsonl").write_text(text)
    return tmp_path


def line(phase, iteration, value, net=0):
    return (
        json.dumps({"phase": phase, "iteration": iteration, "seconds": 1, "outputs": {"x": value}, "net": net}) + "\n"
    )


# -- reading ----------------------------------------------------------------------------------------------------------
def test_a_folder_is_read(tmp_path):
    run = read(folder_of(tmp_path, TRAIN_LINE + TEST_LINE, [TRACE_TEXT]))
    assert (run.facts.kind, run.facts.outcome, run.facts.plan_json(), run.num_workers) == ("run", None, None, 2)
    assert run.facts.command == ("poseidon", "train", "--solver=s.prototxt")
    assert run.training == (TRAIN_METRIC,)
    assert run.tests == (Metric("test", 100, 3.0, {"accuracy": 0.9}),)
    (trace,) = run.traces
    assert (trace.rank, trace.host, trace.offset_s, trace.uncertainty_s) == (1, "b", 5.0, 0.001)
    assert trace.events == (
        Event("backward", 'ip "1"', 7, 6.5, 0.25),
        Event("ready", "ip/0", 7, 6.75, unit=3),
        Event("move", "ip/0", 7, 6.7500001, 0.01, 4096, 3, 0),
    )
    assert trace.of_iteration(6) == ()
    assert trace.iterations == ()


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    folder_of(tmp_path, TRAIN_LINE + TEST_LINE[:30], [TRACE_TEXT[:-20], '{"rank": 2, "ho'])
    run = read(tmp_path)
    assert [metric.phase for metric in run.metrics] == ["train"]
    assert [[event.kind for event in trace.events] for trace in run.traces] == [["backward", "ready"]]


@pytest.mark.parametrize("torn", [TEST_LINE[:30], "x" * 200_000, ""])
@pytest.mark.parametrize("before", [TRAIN_LINE, ""])
def test_a_run_goes_on_behind_the_last_whole_line(tmp_path, before, torn):
    """The part before was cut off in the midst of a line."""
    folder_of(tmp_path, before + torn)
    with MetricsWriter(tmp_path, anew=False) as writer:
        writer.write(TRAIN_METRIC)
    assert (tmp_path / "metrics.jsonl").read_text() == before + TRAIN_LINE
    assert read(tmp_path).metrics == (TRAIN_METRIC,)


def test_some_iterations_are_read_without_the_others(tmp_path):
    """What is not wanted is not even looked at: damage there does no harm."""
    head = TRACE_TEXT.splitlines()[0].replace("5.0", "0.0")
    lines = [f'{{"k":"iteration","n":"","i":{i},"t":{i}.0000000,"d":0.5000000}}' for i in range(10)]
    odd = '{"k":"forward","n":"\\"i\\":3,","i":4,"t":4.1000000,"d":0.1000000}'
    text = "\n".join([head, *lines[:4], odd, *lines[4:9], '{"k":"move","i":9,broken', lines[9]]) + "\n"
    folder_of(tmp_path, traces=[text])
    (trace,) = read(tmp_path, range(3, 6)).traces
    assert [(event.kind, event.iteration) for event in trace.events] == [
        *(("iteration", 3), ("iteration", 4), ("forward", 4), ("iteration", 5))
    ]
    with pytest.raises(RecordError, match="expected JSON"):
        read(tmp_path)
    found = traced(tmp_path)
    assert (found.iterations, found.num_events) == (tuple(range(10)), 13)
    assert found.latest(4, 1000) == range(6, 10)
    assert found.latest(100, 5) == range(7, 10)  # of 1.3 lines each
    assert found.latest(100, 0) == range(9, 10)


def test_what_a_restart_does_again_counts_once(tmp_path):
    text = "".join(
        [
            *(line("test", 0, 0.1), line("test", 0, 0.2, net=1), line("train", 0, 1), line("train", 100, 2)),
            *(line("train", 200, 3), line("test", 200, 0.3), line("train", 300, 4)),
            *(line("train", 200, 33), line("train", 300, 44)),
        ]
    )
    run = read(folder_of(tmp_path, text))
    found = [(metric.phase, metric.iteration, metric.net_index, metric.outputs["x"]) for metric in run.metrics]
    assert found == [
        *(("test", 0, 0, 0.1), ("test", 0, 1, 0.2), ("train", 0, 0, 1), ("train", 100, 0, 2)),
        *(("test", 200, 0, 0.3), ("train", 200, 0, 33), ("train", 300, 0, 44)),
    ]


def test_clocks_that_drift_are_followed(tmp_path):
    """Offsets 5 at 0 s and 6 at 10 s: at 2.5 s it is 5.25; what was recorded after the last comparison gets 6."""
    text = TRACE_TEXT.splitlines()[0] + "\n"
    for at in (2.5, 12.0):
        text += json.dumps({"k": "ready", "n": "", "i": 0, "t": at}) + "\n"
    text += '{"offset": 6.0, "uncertainty": 0.002, "t": 10.0}\n'
    (trace,) = read(folder_of(tmp_path, "", [text])).traces
    assert [event.start_s for event in trace.events] == [7.75, 18.0]
    assert (trace.offset_s, trace.uncertainty_s) == (5.0, 0.002)


def test_what_lies_inside_stays_inside(tmp_path):
    """Whatever the digits of times and offsets: events that begin or end together do so after writing and reading."""
    chance = random.Random(5)
    cuts = sorted(chance.random() * 1000 for _ in range(400))
    events = [Event("forward", "", 0, a, b - a) for a, b in itertools.pairwise(cuts)]
    events += [Event("iteration", "", 0, a, b - a) for a, b in zip(cuts[:-8:8], cuts[8::8], strict=True)]
    write_facts(tmp_path, Facts("run", (), 0.0))
    with TraceWriter(tmp_path, Trace(0, "a", 1 / 3, 0.0, 0.0)) as trace:
        trace.write(events)
        trace.compare(990.0, 1 / 3 + 0.0123456789, 0.0)
    document = {"traceEvents": list(chrome_events(read(tmp_path).traces))}
    chrome_format.check(document)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "poseidon-run/9"}, "another version"),
        ({"kind": "dream"}, "one of run, simulation"),
        ({"started": "now"}, r"started: expected a finite number, got \"now\""),
        ({"cluster": None}, "cluster: expected an object, got null"),
        ({"net": 3}, "net: expected text, got 3"),
    ],
)
def test_damaged_facts_are_named(tmp_path, change, said):
    with pytest.raises(RecordError, match=said):
        read(folder_of(tmp_path, facts={**FACTS, **change}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not json\n" + TRAIN_LINE, "metrics.jsonl:1: expected JSON"),
        (TRAIN_LINE.replace("2.5", "NaN"), "NaN is no number"),
        (TRAIN_LINE.replace("100", "-1", 1), "iteration: expected a whole number from 0 on, got -1"),
        (TRAIN_LINE.replace("100", "true", 1), "iteration: expected a whole number"),
        (TRAIN_LINE.replace('"train"', '"war"'), "one of train, test, got 'war'"),
        ("[]\n", "expected a JSON object"),
    ],
)
def test_damaged_metrics_are_named(tmp_path, text, said):
    with pytest.raises(RecordError, match=said):
        read(folder_of(tmp_path, text))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"k":"ready"', '"k":"reedy"', "trace-0.jsonl:3: k: expected one of forward"),
        ('"d":0.25', '"d":-0.25', "0 or more seconds"),
        ('"host"', '"hots"', "host: expected text, got nothing"),
    ],
)
def test_damaged_traces_are_named(tmp_path, before, after, said):
    with pytest.raises(RecordError, match=said):
        read(folder_of(tmp_path, "", [TRACE_TEXT.replace(before, after)]))


def test_a_rank_has_one_trace(tmp_path):
    with pytest.raises(RecordError, match="several of rank 1"):
        read(folder_of(tmp_path, "", [TRACE_TEXT, TRACE_TEXT]))


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(RecordError, match="--record"):
        read(tmp_path / "nowhere")


# -- writing ----------------------------------------------------------------------------------------------------------
def test_what_is_written_is_the_text_above(tmp_path):
    facts = Facts("run", ("poseidon", "train"), 1.5, cluster={"workers": 2, "bandwidth": float("inf")})
    write_facts(tmp_path / "new", facts)
    found = json.loads((tmp_path / "new" / "run.json").read_text())
    assert found["format"] == "poseidon-run/1"
    assert found["cluster"] == {"workers": 2, "bandwidth": None}
    with MetricsWriter(tmp_path) as metrics:
        metrics.write(TRAIN_METRIC)
    assert (tmp_path / "metrics.jsonl").read_text() == TRAIN_LINE
    with MetricsWriter(tmp_path, anew=False) as metrics:
        metrics.write(Metric("test", 1, 2.0, {"x": float("nan")}))
    assert '"x": null' in (tmp_path / "metrics.jsonl").read_text().splitlines()[1]
    with TraceWriter(tmp_path, Trace(1, "b", 5.0, 0.001, 1700000000.0)) as trace:
        trace.write([Event("backward", 'ip "1"', 7, 1.5, 0.25)])
        trace.write([Event("ready", "ip/0", 7, 1.75, unit=3), Event("move", "ip/0", 7, 1.7500001, 0.01, 4096, 3, 0)])
    assert (tmp_path / "trace-1.jsonl").read_text() == TRACE_TEXT


def test_every_field_of_an_event_comes_back(tmp_path):
    fields = itertools.product((None, 0.5), (None, 10), (None, 3), (None, 0))
    events = tuple(Event("move", "ip/0", 7, float(number), *rest) for number, rest in enumerate(fields))
    write_facts(tmp_path, Facts("run", (), 0.0))
    TraceWriter(tmp_path, Trace(0, "a", 0.0, 0.0, 0.0, events)).close()
    assert read(tmp_path).traces[0].events == events


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for write in (
        lambda: write_facts(tmp_path / "file" / "run", Facts("run", (), 0.0)),
        lambda: MetricsWriter(tmp_path / "file"),
        lambda: TraceWriter(tmp_path / "file", Trace(0, "", 0.0, 0.0, 0.0)),
    ):
        with pytest.raises(RecordError, match="cannot be written there"):
            write()


def test_shapes_of_the_net_come_back_and_damaged_ones_are_named(tmp_path):
    shapes = {"blobs": {"data": [64, 1, 28, 28], "loss": []}, "params": {"ip/0": [10, 784]}}
    assert read(folder_of(tmp_path)).facts.shapes == {}
    found = read(folder_of(tmp_path, facts={**FACTS, "shapes": shapes})).facts
    assert found.shapes == {"blobs": {"data": (64, 1, 28, 28), "loss": ()}, "params": {"ip/0": (10, 784)}}
    write_facts(tmp_path / "again", found)
    assert read(tmp_path / "again").facts == found
    for wrong in ([1, -2], [1.5], "3", [True]):
        with pytest.raises(RecordError, match=r"shapes: params: ip/0: expected a list of extents, got .*; the folder"):
            read(folder_of(tmp_path, facts={**FACTS, "shapes": {**shapes, "params": {"ip/0": wrong}}}))
