"""`poseidon` on a terminal: the live line, what scrolls above it, and what is said at the end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from poseidon.cli import caffe_main, main, progress
from poseidon.cli.progress import outputs_text, rate_text, time_text
from poseidon.solver.events import OutputValue
from tests.cli.nets import Running, write_case
from tests.cli.screen import run_on_terminal

TRAIN = ["train", "--solver=solver.prototxt"]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_whole_run(here, monkeypatch):
    monkeypatch.setattr(progress, "_REFRESH_S", 0.0)
    write_case(here, "max_iter: 300 test_iter: 2 test_interval: 100 snapshot: 200")
    lines = run_on_terminal(main, TRAIN)
    assert lines.count("net 'tiny': 8 parameters, on the CPU") == 1
    tests = [line for line in lines if "  test  " in line]
    assert [re.fullmatch(r"iteration (\d+)  test  accuracy [\d.e-]+  loss [\d.e-]+", line)[1] for line in tests] == [
        "0",
        "100",
        "200",
        "300",
    ]
    assert "iteration 200  snapshot  snap_iter_200.solverstate" in lines
    *_, last = [line for line in lines if line.startswith("trained ") and "/300" in line]
    assert re.search(r"300/300 .* it/s .*loss [\d.e-]+ +lr 0\.01$", last)
    assert re.fullmatch(r"trained to iteration 300 in [\d.]+ s", lines[-2])
    assert lines[-1] == "weights: snap_iter_300.caffemodel"
    assert not any("solver.cpp" in line or "net.cpp" in line for line in lines)


@pytest.mark.parametrize("columns", [50, 72, 80, 200])
def test_the_line_fits_the_terminal(here, columns):
    write_case(here, "max_iter: 450 snapshot_after_train: false")
    lines = run_on_terminal(main, TRAIN, columns)
    live = [line for line in lines if re.match(r"(building|training|trained) ", line) and "/450" in line]
    assert live
    for line in live:
        assert len(line) <= columns
    assert re.search(r"450/450 .*loss [\d.e-]+ +lr 0\.01$", live[-1])
    assert ("━" in live[-1]) == (columns >= 72)
    assert lines[-1] == "these weights were not saved: snapshot_after_train is false in the solver"


def test_several_test_nets_are_told_apart(here):
    write_case(here, "max_iter: 2 test_iter: 1 test_iter: 2 test_interval: 2 snapshot_after_train: false")
    lines = run_on_terminal(main, TRAIN)
    assert [line.split("  ")[:2] for line in lines if "test net #" in line] == [
        [f"iteration {iteration}", f"test net #{net}"] for iteration in (0, 2) for net in (0, 1)
    ]


def test_going_on_from_a_snapshot(here):
    write_case(here, "max_iter: 20 snapshot: 10")
    run_on_terminal(main, TRAIN)
    lines = run_on_terminal(main, [*TRAIN, "--snapshot=snap_iter_10.solverstate"])
    assert "going on from iteration 10 of snap_iter_10.solverstate" in lines
    (here / "snap_iter_10.poseidon.json").unlink()
    lines = run_on_terminal(main, [*TRAIN, "--snapshot=snap_iter_10.solverstate"])
    assert any("going on from iteration 10" in line and "data begins anew" in line for line in lines)


def test_a_loss_that_runs_away_is_told_once(here):
    write_case(here, "max_iter: 30 snapshot_after_train: false")
    text = (here / "solver.prototxt").read_text().replace("base_lr: 0.01", "base_lr: 1e38")
    (here / "solver.prototxt").write_text(text)
    (here / "net.prototxt").write_text((here / "net.prototxt").read_text().replace("SoftmaxWithLoss", "EuclideanLoss"))
    (here / "net.prototxt").write_text((here / "net.prototxt").read_text().replace("num_output: 2", "num_output: 1"))
    lines = run_on_terminal(main, TRAIN)
    assert len([line for line in lines if "a lower base_lr" in line]) == 1


def test_plain_and_caffe_write_logs_on_a_terminal_too(here):
    write_case(here, "max_iter: 2 snapshot_after_train: false")
    for program, words in ((main, [*TRAIN, "--plain"]), (caffe_main, TRAIN)):
        lines = run_on_terminal(program, words)
        assert lines[-1].endswith("caffe.cpp:250] Optimization Done.")


def test_scores(here):
    folder = Path(__file__).parents[1] / "golden" / "formats" / "logs" / "test"
    for path in folder.iterdir():
        shutil.copy(path, here)
    words = ["test", "--model=net.prototxt", "--weights=init.caffemodel", "--iterations=3"]
    lines = run_on_terminal(main, words)
    # Caffe's own figures for these three batches.
    assert lines[-1] == "mean over 3 batches:  accuracy 0.333333  loss 1.25105"


def test_times(here):
    write_case(here)
    lines = run_on_terminal(main, ["time", "--model=net.prototxt", "--iterations=3"])
    start = next(i for i, line in enumerate(lines) if line.split()[:2] == ["layer", "type"])
    rows = [line.split() for line in lines[start + 1 : -1]]
    assert [row[0] for row in rows] == ["x", "fc", "loss", "all"]
    assert [row[1] for row in rows[:3]] == ["DummyData", "InnerProduct", "SoftmaxWithLoss"]
    for column in (2, 3):
        parts = [float(row[column]) for row in rows[:3]]
        assert float(rows[3][column - 1]) == pytest.approx(sum(parts), abs=0.002)
    assert sum(float(row[4].rstrip("%")) for row in rows[:3]) == pytest.approx(100, abs=0.2)
    assert re.fullmatch(r"[\d.]+ ms forward and backward, on average of 3 passes", lines[-1])


def test_ctrl_c_says_how_to_go_on(tmp_path):
    write_case(tmp_path, "max_iter: 1000000000 test_iter: 1 test_interval: 1000000000")
    with terminal_process(tmp_path) as (run, screen):
        read_until(screen, b"  test  ")
        run.send(signal.SIGINT)
        text = read_until(screen, b"--snapshot=")
        assert b"stopped at iteration " in text
        assert b"to go on: poseidon train --solver=solver.prototxt --snapshot=snap_iter_" in text
        assert run.process.wait() == 0


def test_training_outlives_its_terminal(tmp_path):
    """A connection that breaks ends the terminal, not the training; its display goes nowhere."""
    write_case(tmp_path, "max_iter: 1000000000 test_iter: 1 test_interval: 1000000000")
    with terminal_process(tmp_path, "--sighup-effect=none") as (run, screen):
        read_until(screen, b"  test  ")
        os.close(screen)
        run.send(signal.SIGINT)
        assert run.process.wait() == 0
    assert len(list(tmp_path.glob("snap_iter_*.solverstate"))) == 1


@contextlib.contextmanager
def terminal_process(folder: Path, *flags: str):
    """`poseidon train` as a process whose standard error is a terminal of its own."""
    master, slave = os.openpty()
    with Running(folder, *TRAIN, *flags, program="main", stderr=slave, env={"TERM": "xterm"}) as run:
        os.close(slave)
        yield run, master


def read_until(screen: int, words: bytes) -> bytes:
    """What the terminal shows, up to these words. The process is killed if they never come, which raises here."""
    read = b""
    while words not in read:
        read += os.read(screen, 1 << 16)
    return read


@pytest.mark.parametrize(
    ("per_s", "text"),
    [
        (1234.4, "1,234 it/s"),
        (99.96, "100 it/s"),
        (4.563, "4.56 it/s"),
        (1, "1 it/s"),
        (0.25, "4 s/it"),
        (0.004, "250 s/it"),
    ],
)
def test_rates_in_three_digits(per_s, text):
    assert rate_text(per_s) == text


@pytest.mark.parametrize(("seconds", "text"), [(3.21, "3.2 s"), (75, "1:15"), (3599.9, "59:59"), (7265, "2:01:05")])
def test_times_for_people(seconds, text):
    assert time_text(seconds) == text


def test_blobs_of_many_values_are_cut():
    outputs = [OutputValue("loss", 0.5, 1.0), *(OutputValue("prob", float(i), 0.0) for i in range(9))]
    assert outputs_text(outputs) == "loss 0.5  prob 0 1 2 3 4 5 and 3 more"
