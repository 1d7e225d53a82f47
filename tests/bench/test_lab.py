"""What a comparison in the lab comes to: rounds, goals, the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import lab


@pytest.fixture
def figures(monkeypatch) -> dict[str, list[float]]:
    """Seconds that contenders take, run by run, instead of running them."""
    seconds: dict[str, list[float]] = {"auto": [0.5, 0.6], "ddp": [4.0, 3.0], "ddp-fp16": [2.0, 2.0]}
    taken: dict[str, int] = {}

    def run_once(contender: str, subject: str, options: Any) -> dict[str, Any]:
        turn = taken[contender] = taken.get(contender, -1) + 1
        found = {"median_s": seconds[contender][turn], "peak_mb": 1.0}
        return found if contender.startswith("ddp") else {**found, "bytes_sent": 1_000, "predicted_s": 0.5}

    monkeypatch.setattr(lab, "run_once", run_once)
    return seconds


def options(*words: str) -> Any:
    return lab.options_of(["--contenders", "auto,ddp,ddp-fp16", "--rounds", "2", *words])


def test_rounds_are_compared_one_by_one(figures):
    found = lab.compare("alexnet", options())
    assert found["turns"]["times_ddp"] == pytest.approx([8.0, 5.0])
    assert found["turns"]["of_limit"] == pytest.approx([1.0, 0.5 / 0.6])
    assert found["turns"]["of_predicted"] == pytest.approx([1.0, 1.2])
    assert found["times_ddp"] == pytest.approx(3.5 / 0.55)
    assert found["of_best_forced"] is None


def test_by_force_the_best_counts(figures):
    figures.update({"ring": [1.0, 1.0], "server": [1.1, 1.1], "factors": [0.5, 0.5], "factor-server": [0.8, 0.8]})
    assert lab.compare("alexnet", options("--forced"))["of_best_forced"] == pytest.approx(0.55 / 0.5)


def test_missed_goals_end_with_one(figures, monkeypatch, capsys, tmp_path: Path):
    words = ["lab", "--contenders=auto,ddp,ddp-fp16", "--rounds=1", "--subjects=alexnet", f"--json={tmp_path / 'out'}"]
    monkeypatch.setattr("sys.argv", words)
    assert lab.main() == 0
    assert "missed" not in capsys.readouterr().out
    assert lab.main() == 1
    told = capsys.readouterr().out
    assert "missed     alexnet: 5.00 times DDP, the goal is 7" in told
    assert "missed     alexnet: 0.833 of the limit, the goal is 0.92" in told
    assert json.loads((tmp_path / "out").read_text())[0]["turns"]["times_ddp"] == pytest.approx([5.0])


def test_goals_are_for_eight_hosts_of_1_gbit():
    slow = {
        "subject": "googlenet",
        "hosts": 8,
        "rate": "1gbit",
        "compute_s": 0.35,
        "times_ddp": 1.0,
        "of_limit": 0.1,
    }
    assert lab.missed(slow) == ["googlenet: 1.00 times DDP, the goal is 1.1"]
    assert lab.missed({**slow, "hosts": 4}) == []
    long = {**slow, "compute_s": 3.0}
    assert lab.missed(long) == []
    assert lab.missed({**long, "times_ddp": 0.99}) == ["googlenet: 0.99 times DDP, the goal is 1"]


def test_all_subjects_have_goals():
    assert set(lab.GOALS) == set(lab.SUBJECTS)
