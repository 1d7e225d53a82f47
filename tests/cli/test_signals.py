"""Signals to a training process: what each effect does, in a process of its own. Its log tells when to send one."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from poseidon.cli.signals import signal_requests
from poseidon.solver import Action, Solver
from tests.cli.nets import Running, write_case

ENDLESS = "max_iter: 1000000000 display: 50 snapshot_after_train: true"


def training(folder: Path, *flags: str) -> Running:
    write_case(folder, ENDLESS)
    return Running(folder, "train", "--solver=solver.prototxt", *flags, stderr=subprocess.PIPE)


def snapshots(folder: Path) -> list[int]:
    """Iterations of the snapshots there, which are whole: weights, state and sidecar."""
    names = {path.name for path in folder.iterdir()}
    found = sorted(int(match[1]) for name in names if (match := re.fullmatch(r"snap_iter_(\d+)\.solverstate", name)))
    for iteration in found:
        assert {f"snap_iter_{iteration}.caffemodel", f"snap_iter_{iteration}.poseidon.json"} <= names
    return found


def test_ctrl_c_stops_with_a_snapshot(tmp_path, monkeypatch):
    with training(tmp_path) as run:
        run.read_until("Iteration 50 ")
        run.send(signal.SIGINT)
        end = run.read_to_end()
        assert run.process.wait() == 0
    (iteration,) = snapshots(tmp_path)
    assert iteration > 50
    said = re.findall(r"(\S+:\d+)\] (.*)", end)[-4:]
    assert said == [
        ("solver.cpp:464", f"Snapshotting to binary proto file snap_iter_{iteration}.caffemodel"),
        ("sgd_solver.cpp:284", f"Snapshotting solver state to binary proto file snap_iter_{iteration}.solverstate"),
        ("solver.cpp:311", "Optimization stopped early."),
        ("caffe.cpp:250", "Optimization Done."),
    ]
    monkeypatch.chdir(tmp_path)
    solver = Solver("solver.prototxt")
    solver.restore(f"snap_iter_{iteration}.solverstate")
    assert solver.iter == iteration


def test_hang_up_writes_a_snapshot_and_goes_on(tmp_path):
    with training(tmp_path) as run:
        run.read_until("Iteration 50 ")
        run.send(signal.SIGHUP)
        run.read_until("Snapshotting solver state")
        run.read_until("Train net output")  # it goes on
        run.send(signal.SIGINT)
        assert "Optimization stopped early." in run.read_to_end()
        assert run.process.wait() == 0
    assert len(snapshots(tmp_path)) == 2


def test_effects_can_be_exchanged(tmp_path):
    with training(tmp_path, "--sigint_effect=none", "-sighup_effect", "stop") as run:
        run.read_until("Iteration 50 ")
        run.send(signal.SIGINT)
        for _ in range(3):
            run.read_until("Train net output")
        assert snapshots(tmp_path) == []
        run.send(signal.SIGHUP)
        assert "Optimization stopped early." in run.read_to_end()
        assert run.process.wait() == 0
    assert len(snapshots(tmp_path)) == 1


def test_ctrl_c_before_training_starts(tmp_path):
    """The request waits until the nets are built: the first iteration is the last."""
    with training(tmp_path, "--sighup-effect=none") as run:
        run.read_until("Use CPU.")
        run.send(signal.SIGINT)
        assert "Optimization stopped early." in run.read_to_end()
        assert run.process.wait() == 0
    assert len(snapshots(tmp_path)) == 1


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        ([signal.SIGINT], [Action.STOP, Action.NONE]),
        ([signal.SIGHUP], [Action.SNAPSHOT, Action.NONE]),
        ([signal.SIGHUP, signal.SIGHUP], [Action.SNAPSHOT, Action.NONE]),
        ([signal.SIGHUP, signal.SIGINT], [Action.STOP, Action.SNAPSHOT, Action.NONE]),
        ([], [Action.NONE]),
    ],
)
def test_what_signals_ask_for(sent, answers):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)
    with signal_requests("stop", "snapshot") as requests:
        for number in sent:
            signal.raise_signal(number)
        assert requests.is_stopping == (signal.SIGINT in sent)
        assert [requests() for _ in answers] == answers
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)) == before
