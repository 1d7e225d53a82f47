"""Caffe's log, line for line, from a solver's events, so that whatever reads Caffe's logs reads ours.

A line begins as glog begins it, and numbers have six significant digits, as C++ prints them (`poseidon/log_line.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TextIO

from poseidon.log_line import LogLine, number
from poseidon.solver import events
from poseidon.solver.net_log import built_lines, filter_lines, planned_lines
from poseidon.spec import format_message


class LogWriter:
    """A listener that writes events as Caffe's log lines."""

    def __init__(self, stream: TextIO, now: Callable[[], datetime] = datetime.now) -> None:
        self._stream = stream
        self._now = now

    def __call__(self, event: events.Event) -> None:
        self.write(lines_of(event))

    def write(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            self._stream.write(line.stamped(self._now()))
        self._stream.flush()


def lines_of(event: events.Event) -> list[LogLine]:
    """The lines an event gives; events that Caffe's log does not know give none."""
    lines = _LINES.get(type(event))
    return [] if lines is None else list(lines(event))


# -- building -------------------------------------------------------------------------------------------------------
def _solver_started(event: events.SolverStarted) -> list[LogLine]:
    settings = format_message(event.param).rstrip("\n")
    return [LogLine("solver.cpp:45", f"Initializing solver from parameters: \n{settings}")]


def _net_planned(event: events.NetPlanned) -> list[LogLine]:
    if event.test_index is None:
        first = _TRAIN_NET_LINES[event.origin.partition(" ")[0]](event.origin)
    else:
        text = f"Creating test net (#{event.test_index}) specified by {event.origin}"
        first = LogLine("solver.cpp:190", text)
    return [first, *filter_lines(event.source, event.state), *planned_lines(event.source, event.state)]


_TRAIN_NET_LINES: dict[str, Callable[[str], LogLine]] = {
    "train_net_param": lambda origin: LogLine("solver.cpp:88", f"Creating training net specified in {origin}."),
    "train_net": lambda origin: LogLine("solver.cpp:92", f"Creating training net from {origin}"),
    "net_param": lambda origin: LogLine("solver.cpp:97", f"Creating training net specified in {origin}."),
    "net": lambda origin: LogLine("solver.cpp:102", f"Creating training net from {origin}"),
}


# -- solving --------------------------------------------------------------------------------------------------------
def _solving_started(event: events.SolvingStarted) -> list[LogLine]:
    return [
        LogLine("solver.cpp:289", f"Solving {event.net_name}"),
        LogLine("solver.cpp:290", f"Learning Rate Policy: {event.policy}"),
    ]


def _restored(event: events.Restored) -> list[LogLine]:
    # Caffe says so for binary states only, and says SGDSolver whatever the rule.
    is_hdf5 = event.path.endswith(".h5")
    return [] if is_hdf5 else [LogLine("sgd_solver.cpp:336", "SGDSolver: restoring history")]


def _solving_done(event: events.SolvingDone) -> list[LogLine]:
    if event.stopped_early:
        return [LogLine("solver.cpp:311", "Optimization stopped early.")]
    return [LogLine("solver.cpp:332", "Optimization Done.")]


# -- one iteration --------------------------------------------------------------------------------------------------
def _iteration_shown(event: events.IterationShown) -> list[LogLine]:
    rate = event.num_iterations / (event.elapsed_s or 1)
    pace = f"{number(rate)} iter/s, {number(event.elapsed_s)}s/{event.interval} iters"
    text = f"Iteration {event.iteration} ({pace}), loss = {number(event.loss)}"
    return [LogLine("solver.cpp:239", text), *_output_lines("solver.cpp:258", "Train", event.outputs)]


def _output_lines(place: str, kind: str, outputs: Iterable[events.OutputValue]) -> list[LogLine]:
    return [
        LogLine(place, f"    {kind} net output #{index}: {output_text(output)}") for index, output in enumerate(outputs)
    ]


def output_text(output: events.OutputValue) -> str:
    """`name = value`, and for a loss what it weighs."""
    text = f"{output.blob} = {number(output.value)}"
    if not output.loss_weight:
        return text
    return f"{text} (* {number(output.loss_weight)} = {number(output.loss_weight * output.value)} loss)"


def _gradients_clipped(event: events.GradientsClipped) -> list[LogLine]:
    text = (
        f"Gradient clipping: scaling down gradients (L2 norm {number(event.norm)} > {number(event.limit)}) "
        f"by scale factor {number(event.factor)}"
    )
    return [LogLine("sgd_solver.cpp:99", text)]


# -- debug_info -----------------------------------------------------------------------------------------------------
def _blob_seen(event: events.BlobSeen) -> list[LogLine]:
    direction, what = ("Backward", "diff") if event.backward else ("Forward", "data")
    place = _DEBUG_PLACES[direction, event.kind]
    text = f"    [{direction}] Layer {event.layer}, {event.kind} blob {event.blob} {what}: {number(event.mean)}"
    return [LogLine(place, text)]


_DEBUG_PLACES = {
    ("Forward", "top"): "net.cpp:591",
    ("Forward", "param"): "net.cpp:603",
    ("Backward", "bottom"): "net.cpp:619",
    ("Backward", "param"): "net.cpp:630",
}


def _gradients_seen(event: events.GradientsSeen) -> list[LogLine]:
    l1 = f"L1 norm = ({number(event.data_l1)}, {number(event.diff_l1)})"
    l2 = f"L2 norm = ({number(event.data_l2)}, {number(event.diff_l2)})"
    # Caffe logs this one as an error.
    return [LogLine("net.cpp:684", f"    [Backward] All net params (data, diff): {l1}; {l2}", severity="E")]


# -- tests and snapshots --------------------------------------------------------------------------------------------
def _test_done(event: events.TestDone) -> list[LogLine]:
    loss = [] if event.loss is None else [LogLine("solver.cpp:401", f"Test loss: {number(event.loss)}")]
    return [*loss, *_output_lines("solver.cpp:414", "Test", event.outputs)]


def _snapshot_started(event: events.SnapshotStarted) -> list[LogLine]:
    kind = "HDF5" if event.is_hdf5 else "binary proto"
    places = ("solver.cpp:474", "sgd_solver.cpp:296") if event.is_hdf5 else ("solver.cpp:464", "sgd_solver.cpp:284")
    return [
        LogLine(places[0], f"Snapshotting to {kind} file {event.model}"),
        LogLine(places[1], f"Snapshotting solver state to {kind} file {event.state}"),
    ]


def _snapshot_failed(event: events.SnapshotFailed) -> list[LogLine]:
    text = f"Snapshot of iteration {event.iteration} failed, training goes on: {event.problem}"
    return [LogLine("background.py:1", text, "W")]


def _one(place: str, text: Callable[[Any], str]) -> Callable[[Any], list[LogLine]]:
    return lambda event: [LogLine(place, text(event))]


_LINES: dict[type[events.Event], Callable[[Any], Iterable[LogLine]]] = {
    events.SolverStarted: _solver_started,
    events.NetPlanned: _net_planned,
    events.NetBuilt: lambda event: built_lines(event.net),
    events.WeightsLoaded: _one("solver.cpp:72", lambda event: f"Finetuning from {event.path}"),
    events.SolverReady: _one("solver.cpp:57", lambda event: "Solver scaffolding done."),
    events.SolvingStarted: _solving_started,
    events.RestoreStarted: _one("solver.cpp:296", lambda e: f"Restoring previous solver status from {e.path}"),
    events.Restored: _restored,
    events.FinalLoss: _one("solver.cpp:327", lambda e: f"Iteration {e.iteration}, loss = {number(e.loss)}"),
    events.SolvingDone: _solving_done,
    events.IterationShown: _iteration_shown,
    events.StepAdvanced: _one(
        "sgd_solver.cpp:50", lambda e: f"MultiStep Status: Iteration {e.iteration}, step = {e.step}"
    ),
    events.RateShown: _one("sgd_solver.cpp:112", lambda e: f"Iteration {e.iteration}, lr = {number(e.rate)}"),
    events.GradientsClipped: _gradients_clipped,
    events.BlobSeen: _blob_seen,
    events.GradientsSeen: _gradients_seen,
    events.TestStarted: _one("solver.cpp:347", lambda e: f"Iteration {e.iteration}, Testing net (#{e.net_index})"),
    events.TestDone: _test_done,
    events.TestInterrupted: _one("solver.cpp:396", lambda event: "Test interrupted."),
    events.SnapshotStarted: _snapshot_started,
    events.SnapshotFailed: _snapshot_failed,
}
