"""The log, line by line against what BVLC Caffe printed for the same runs."""

from __future__ import annotations

import io
import json
import re
from datetime import datetime

import pytest

from poseidon.log_line import LogLine, number
from poseidon.solver import Solver, events
from poseidon.solver.log import LogWriter, lines_of
from poseidon.solver.net_log import filter_lines
from poseidon.spec import caffe_pb2, parse_net, read_solver
from tests.solver.golden import LOGS, copy_case
from tests.solver.small import made, net_message, solver_message

PREFIX = re.compile(r"^([IWEF])\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ (\S+)\] ", re.M)
CAFFES_PREFIX = re.compile(r"^([IWEF])\d{8} \d\d:\d\d:\d\d\.\d{6} +\d+ (\S+)\] ", re.M)
NUMBER = re.compile(r"(?<![\w.])-?\d+\.?\d*(?:e[-+]\d+)?(?![\w.])")
# Told by the command and by single layer types, not by the solver; a rate of iterations is never the same twice.
ELSEWHERE = re.compile(r"^I (caffe\.cpp|hdf5_data_layer\.cpp|hdf5\.cpp):\d+\].*\n", re.M)
INNER_LAYER = "I layer_factory.hpp:77] Creating layer loss\nI net.cpp:124]"
PACE = re.compile(r"\([^()]*iter/s, [^()]*s/(\d+) iters\)")


def comparable(text: str, prefix: re.Pattern) -> list[str]:
    text = ELSEWHERE.sub("", prefix.sub(r"\1 \2] ", text))
    text = text.replace(INNER_LAYER, "I net.cpp:124]")  # Caffe's loss layer makes a softmax layer of its own
    return PACE.sub(r"(pace of \1)", text).splitlines()


@pytest.mark.parametrize("folder", LOGS, ids=lambda folder: folder.name)
def test_the_log_is_caffes(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_case(folder, tmp_path, with_snapshots=True)
    arguments = json.loads((folder / "args.json").read_text())
    param = read_solver("solver.prototxt")
    param.train_state.level = 0  # as the command's -level and -stage leave it
    param.train_state.stage.append("")
    restores = "-snapshot" in arguments["args"]
    if not restores:
        param.weights.append("init.caffemodel")
    written = io.StringIO()
    solver = Solver(param, listeners=[LogWriter(written)])
    if restores:
        solver.restore("snap_iter_4.solverstate")
    solver.solve()
    got = comparable(written.getvalue(), PREFIX)
    want = comparable((folder / "expected.log").read_text(), CAFFES_PREFIX)
    for mine, caffes in zip(got, want, strict=True):
        assert NUMBER.sub("#", mine) == NUMBER.sub("#", caffes)
        numbers = [float(value) for value in NUMBER.findall(mine)]
        assert numbers == pytest.approx([float(value) for value in NUMBER.findall(caffes)], rel=2e-5, abs=1e-6)
    for name in arguments["files_written"]:
        assert (tmp_path / name).exists()


def test_a_line_begins_as_glog_begins_it():
    stream = io.StringIO()
    writer = LogWriter(stream, now=lambda: datetime(2024, 3, 9, 7, 5, 1, 42))
    writer.write([LogLine("caffe.cpp:197", "Use CPU."), LogLine("net.cpp:684", "hm", severity="E")])
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"I0309 07:05:01\.000042 \d+ caffe\.cpp:197\] Use CPU\.", first)
    assert second.startswith("E0309 07:05:01.000042 ")


# What Caffe's log parsers look for; the texts follow its sources.
LINES = [
    (events.StepAdvanced(20, 2), "MultiStep Status: Iteration 20, step = 2"),
    (
        events.GradientsClipped(0, 12.34567891, 2.0, 0.16200005),
        "Gradient clipping: scaling down gradients (L2 norm 12.3457 > 2) by scale factor 0.162",
    ),
    (
        events.BlobSeen(False, "conv1", "top", "conv1", 0.0128905),
        "    [Forward] Layer conv1, top blob conv1 data: 0.0128905",
    ),
    (events.BlobSeen(False, "ip", "param", "shared", 2.0), "    [Forward] Layer ip, param blob shared data: 2"),
    (
        events.BlobSeen(True, "loss", "bottom", "ip2", 1e-07),
        "    [Backward] Layer loss, bottom blob ip2 diff: 1e-07",
    ),
    (events.BlobSeen(True, "ip2", "param", "0", 0.5), "    [Backward] Layer ip2, param blob 0 diff: 0.5"),
    (
        events.GradientsSeen(2711.42, 7086.66, 6.11659, 4085.07),
        "    [Backward] All net params (data, diff): L1 norm = (2711.42, 7086.66); L2 norm = (6.11659, 4085.07)",
    ),
    (events.TestInterrupted(3, 0), "Test interrupted."),
    (events.SolvingDone(3, stopped_early=True), "Optimization stopped early."),
    (events.RestoreStarted("a.solverstate"), "Restoring previous solver status from a.solverstate"),
]


@pytest.mark.parametrize(("event", "text"), LINES, ids=lambda value: type(value).__name__)
def test_lines_the_records_do_not_have(event, text):
    (line,) = lines_of(event)
    assert line.text == text
    assert line.severity == ("E" if isinstance(event, events.GradientsSeen) else "I")


def test_a_test_loss_comes_before_the_outputs():
    outputs = (events.OutputValue("acc", 0.75, 0.0), events.OutputValue("loss", 0.5, 2.0))
    texts = [line.text for line in lines_of(events.TestDone(7, 0, 1.25, outputs))]
    assert texts == [
        "Test loss: 1.25",
        "    Test net output #0: acc = 0.75",
        "    Test net output #1: loss = 0.5 (* 2 = 1 loss)",
    ]


def test_only_displayed_iterations_print(listing):
    stream = io.StringIO()
    solver, recorder = made(solver_message(net_message(listing), "display: 3"))
    solver.listeners.append(LogWriter(stream))
    solver.step(4)
    assert len(recorder.of(events.IterationDone)) == 4
    starts = [line.split("] ")[1][:13].strip() for line in stream.getvalue().splitlines()]
    shown = [("Iteration 0 (", "Train net", "Iteration 0,"), ("Iteration 3 (", "Train net", "Iteration 3,")]
    assert starts == [start for lines in shown for start in lines]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("phase: TEST", "The NetState phase (0) differed from the phase (1)"),
        ("min_level: 3", "The NetState level (2) is above the min_level (3)"),
        ("max_level: 1", "The NetState level (2) is above the max_level (1)"),
        ('stage: "a" stage: "b"', "The NetState did not contain stage 'b'"),
        ('not_stage: "c" not_stage: "a"', "The NetState contained a not_stage 'a'"),
    ],
)
@pytest.mark.parametrize("kind", ["include", "exclude"])
def test_rules_that_do_not_hold(kind, rule, text):
    source = parse_net(f'layer {{ name: "odd" type: "Split" {kind} {{ {rule} }} }}')
    state = caffe_pb2.NetState(phase=caffe_pb2.TRAIN, level=2, stage=["a"])
    assert [line.text for line in filter_lines(source, state)] == [f"{text} specified by a rule in layer odd"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.1 + 0.2, "0.3"), (1234567.0, "1.23457e+06"), (1e-5, "1e-05"), (float("nan"), "nan"), (-0.0, "-0")],
)
def test_numbers_print_as_in_c(value, text):
    assert number(value) == text
