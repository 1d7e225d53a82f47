"""Whole runs of the command beside what BVLC Caffe printed and wrote for the same command lines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from poseidon.cli import caffe_main
from tests.cli.facts import facts_of

CASES = sorted((Path(__file__).parents[1] / "golden" / "formats" / "logs").iterdir())


def run_case(folder: Path, here: Path, capfd) -> tuple[int, str]:
    """Runs a case's command line in a folder with the files Caffe had."""
    for path in folder.iterdir():
        if path.name not in ("args.json", "expected.log"):
            shutil.copy(path, here)
    code = caffe_main(json.loads((folder / "args.json").read_text())["args"])
    return code, capfd.readouterr().err


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_caffes_own_runs(folder, here, capfd):
    before = {path.name for path in folder.iterdir()}
    code, log = run_case(folder, here, capfd)
    assert code == 0
    got, want = facts_of(log), facts_of((folder / "expected.log").read_text())
    assert len(want) > 5
    assert [(fact.place, fact.text) for fact in got] == [(fact.place, fact.text) for fact in want]
    for mine, caffes in zip(got, want, strict=True):
        assert mine.numbers == pytest.approx(caffes.numbers, rel=2e-5, abs=1e-6), caffes
    written = {path.name for path in here.iterdir()} - before
    sidecars = {name for name in written if name.endswith(".poseidon.json")}
    assert written - sidecars == set(json.loads((folder / "args.json").read_text())["files_written"])


def test_a_resumed_run_repeats_the_whole_one(here, capfd):
    """From our own snapshot, data and all: what is printed after it is the same to the last digit."""
    _, log = run_case(next(case for case in CASES if case.name == "train"), here, capfd)
    assert caffe_main(["train", "--solver=solver.prototxt", "--snapshot=snap_iter_4.solverstate"]) == 0
    tails = []
    for facts in (facts_of(log), facts_of(capfd.readouterr().err)):
        starts = [
            i for i, fact in enumerate(facts) if fact.text.startswith("Iteration #, Testing") and 4 in fact.numbers
        ]
        tails.append(facts[starts[0] :])
    whole, resumed = tails
    assert len(whole) > 10
    assert resumed == whole
