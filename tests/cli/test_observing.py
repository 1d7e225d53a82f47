"""`poseidon train` with somebody watching: what the flags leave behind, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from poseidon.cli import main
from poseidon.record import read
from tests.cli.nets import write_case
from tests.cli.screen import run_on_terminal
from tests.record import chrome_format

TRAIN = ["train", "--solver=solver.prototxt"]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_case(tmp_path, "max_iter: 20 display: 5 test_iter: 2 test_interval: 10 snapshot: 10")
    return tmp_path


def test_a_record_and_its_timeline(here, capsys):
    assert main([*TRAIN, "--record=runs/r"]) == 0
    assert "worker.py:1] record    runs/r" in capsys.readouterr().err
    run = read("runs/r")
    assert run.facts.command == ("poseidon", *TRAIN, "--record=runs/r")
    assert run.facts.outcome == "trained to iteration 20"
    assert run.facts.configuration["--solver"] == "solver.prototxt"
    assert run.traces[0].iterations == (7, 8, 9, 10, 11)
    assert main(["trace", "runs/r", "-o", "t.json"]) == 0
    chrome_format.check(json.loads(Path("t.json").read_text()))


def test_a_trace_of_all_iterations(here):
    assert main([*TRAIN, "--trace", "r"]) == 0
    assert read("r").traces[0].iterations == tuple(range(20))


def test_a_run_goes_on_in_its_folder_from_a_snapshot_only(here, capsys):
    assert main([*TRAIN, "--record=r"]) == 0
    assert main([*TRAIN, "--record=r"]) == 1
    assert "poseidon: error: r: holds the record of another run; name another folder" in capsys.readouterr().err
    assert main([*TRAIN, "--record=r", "--snapshot=snap_iter_10.solverstate"]) == 0
    assert [metric.iteration for metric in read("r").training] == [0, 5, 10, 15]


def test_on_a_terminal_too(here):
    lines = run_on_terminal(main, [*TRAIN, "--record=r", "--metrics-port=0", "--tensorboard=tb"])
    assert "record    r" in lines
    assert any(line.startswith("metrics   http://127.0.0.1:") for line in lines)
    assert "curves    tensorboard --logdir tb" in lines
    assert any(line.startswith("loss      ") for line in lines)
    assert list(Path("tb").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--record=a", "--trace=b"], "--record and --trace name one folder"),
        (["--histograms=5"], "give --tensorboard FOLDER too"),
        (["--metrics-port=70000"], "from 0 (any) to 65535, got 70000"),
        (["--metrics-port=0", "--metrics-address=203.0.113.7"], "cannot serve figures at 203.0.113.7"),
        (["--wandb=digits"], "pip install wandb"),
        (["--record=solver.prototxt/r"], "a run's record cannot be written there"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_computed(here, capsys, monkeypatch, flags, said):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    assert main([*TRAIN, *flags]) == 1
    printed = capsys.readouterr().err
    assert said in printed
    assert "Iteration 0" not in printed
