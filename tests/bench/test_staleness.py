"""The bench of unequal machines: what it makes of its runs, and when a goal is missed."""

from __future__ import annotations

import json
import subprocess

import pytest

from bench import staleness, staleness_page
from bench.staleness import LIMITS, PARTS, clocks_of, holds, line, options_of
from bench.staleness_managed import SMOOTH, first_below, smoothed
from bench.staleness_worker import Slowed, Task


def falling(slope: float, number: int = 100) -> list[float]:
    return [1.0 - slope * clock for clock in range(number)]


def test_losses_are_averaged_over_the_last_clocks():
    """The mean of clocks k - 19 … k of a straight line is its value in the middle."""
    found = smoothed(falling(0.01))
    assert len(found) == 100 - SMOOTH + 1
    assert found[0] == pytest.approx(1.0 - 0.01 * (SMOOTH - 1) / 2)


def test_the_first_clock_below_the_target_counts():
    """1 - slope * (clock - 10.5) is the mean of the last 20."""
    assert first_below(falling(0.01), 0.5) == 61
    assert first_below(falling(0.02), 0.5) == 36
    assert first_below(falling(0.0), 0.5) is None
    assert first_below([], 0.5) is None


def test_the_ratio_is_that_of_medians_over_seeds():
    clocks = {"importance": [70, 90, 80], "random": [100, 95, 200]}
    runs = [{"who": who, "seed": s, "clocks": c} for who, found in clocks.items() for s, c in enumerate(found)]
    found = clocks_of(runs, 0.4)
    assert found["ratio"] == pytest.approx(80 / 100)
    assert found["figures"] == {"importance, clocks": 80, "random, clocks": 100}


def test_rows_at_random_that_never_get_there_count_as_one_clock_more():
    runs = [{"who": "importance", "seed": 0, "clocks": 70}]
    runs += [{"who": "random", "seed": 0, "clocks": None, "losses": falling(0.0)}]
    assert clocks_of(runs, 0.4)["ratio"] == pytest.approx(70 / 101)


def test_important_rows_that_never_get_there_are_no_result():
    runs = [{"who": "importance", "seed": 3, "clocks": None}, {"who": "random", "seed": 3, "clocks": 90}]
    with pytest.raises(SystemExit, match=r"did not fall to 0.4: seed 3"):
        clocks_of(runs, 0.4)


@pytest.mark.parametrize(
    ("part", "just", "missed"),
    [("throughput", 1.5, 1.49), ("balance", 1.8, 1.79), ("samples", 1.2, 1.21), ("managed", 0.9, 0.91)],
)
def test_goals(part, just, missed):
    assert holds(part, just)
    assert not holds(part, missed)
    assert "MISSED" in line(part, {"ratio": missed, "figures": {"s = 0, per s": 3.0}})


def test_every_part_has_a_goal():
    assert PARTS.keys() == LIMITS.keys()


def test_contenders_take_turns_and_the_ratio_is_the_median_of_turns(monkeypatch):
    rates = iter([10.0, 20.0, 10.0, 15.0, 1.0, 1.6])
    tasks = []

    def run(task, rate):
        tasks.append(task)
        return {"per_s": next(rates)}

    monkeypatch.setattr(staleness, "in_lab", run)
    found = staleness.throughput(options_of(["--runs", "3"]))
    assert found["ratio"] == pytest.approx(1.6)
    assert [task.staleness for task in tasks] == [0, 3] * 3
    assert [task.seed for task in tasks] == [1, 1, 2, 2, 3, 3]
    assert all(task.pauses and not task.balance for task in tasks)


def test_in_every_iteration_one_worker_is_slow():
    for iteration in range(20):
        task = Task(10, 0.1, "", pauses=True)
        assert sorted(Slowed(None, None, rank, task)._factor(iteration) for rank in range(4)) == [1, 1, 1, 3]
    always = Task(10, 0.1, "", slow_host=3)
    assert [Slowed(None, None, rank, always)._factor(0) for rank in range(4)] == [1, 1, 1, 3]


def test_pictures_have_every_run(tmp_path):
    tests = [[50, 0.96], [100, 0.986]]
    runs = [{"who": f"s = {s}", "seed": seed, "tests": tests} for s in (0, 3) for seed in (1, 2)]
    losses = [{"who": who, "seed": 0, "losses": falling(0.005)} for who in ("importance", "random")]
    results = {"samples": {"runs": runs}, "managed": {"runs": losses, "target": 0.4}}
    staleness_page.draw_all(results, tmp_path)
    for name in ("samples", "managed"):
        assert (tmp_path / f"staleness-{name}.svg").read_bytes().startswith(b"<?xml")


def test_a_job_that_fails_is_no_result(monkeypatch):
    failed = subprocess.CompletedProcess([], 3)
    monkeypatch.setattr(staleness.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SystemExit, match=r"exit code 3"):
        staleness.in_lab(Task(1, 0.0, ""), "1gbit")


def test_without_digits_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["staleness", "--data", str(tmp_path), "--json", str(tmp_path / "out.json")])
    monkeypatch.setattr(staleness, "has_data", lambda *_: False)
    with pytest.raises(SystemExit, match=r"--from, or run `poseidon data mnist`"):
        staleness.main()
    assert not (tmp_path / "out.json").exists()


def test_parts_measured_before_are_kept(monkeypatch, tmp_path):
    path = tmp_path / "out.json"
    path.write_text(json.dumps({"balance": {"ratio": 2.0, "figures": {}, "runs": []}}))
    monkeypatch.setattr("sys.argv", ["staleness", "--parts", "throughput", "--json", str(path)])
    monkeypatch.setattr(staleness, "has_data", lambda *_: True)
    monkeypatch.setitem(PARTS, "throughput", lambda _: {"ratio": 1.4, "figures": {}, "runs": []})
    assert staleness.main() == 1
    assert json.loads(path.read_text()).keys() == {"balance", "throughput"}
