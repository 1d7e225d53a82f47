"""The suite: what counts as a fall, which record a run is compared with, and what the command says and returns."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench import sections, suite
from bench.ratio import Ratio, of_turns, single
from bench.suite import Measure, Record, conclude, falls, last_measures, measures_of, section_text
from poseidon.cli import bench as command
from poseidon.cli import main

COST = Ratio("time / theirs", 0.50, 0.45, 0.55, limit=0.60)
GAIN = Ratio("theirs / ours", 2.0, 1.9, 2.1, limit=1.0, is_gain=True)
BEFORE = Record("2026-01-01T00:00:00Z", "cpu", 2, "2.0", True, 60.0, {"device": [COST], "local": [GAIN]}, {})


def after(cost: float, gain: float) -> Record:
    return replace(BEFORE, sections={"device": [replace(COST, value=cost)], "local": [replace(GAIN, value=gain)]})


def test_a_cost_falls_by_growing_and_a_gain_by_shrinking():
    before = measures_of(BEFORE)
    assert falls(after(0.50, 2.0), before) == []
    assert falls(after(0.25, 4.0), before) == []
    (fall,) = falls(after(0.60, 2.0), before)
    assert str(fall) == "device: time / theirs fell by 17%, from 0.500 to 0.600, since 2026-01-01T00:00:00Z"
    (fall,) = falls(after(0.50, 1.7), before)
    assert str(fall) == "local: theirs / ours fell by 15%, from 2.000 to 1.700, since 2026-01-01T00:00:00Z"


def test_a_tenth_is_no_fall():
    """0.5 → 0.5 / 0.9 and 2.0 → 1.8 are a tenth each, but for rounding."""
    assert falls(after(0.5555, 1.8001), measures_of(BEFORE)) == []
    assert len(falls(after(0.5557, 1.7999), measures_of(BEFORE))) == 2


def test_what_only_one_run_has_is_not_compared():
    assert falls(replace(BEFORE, sections={"device": [single("another", 9.0)]}), measures_of(BEFORE)) == []


def test_record_survives_its_file():
    assert Record.from_json(BEFORE.to_json()) == BEFORE


def test_turns_give_median_and_spread():
    assert of_turns("x", [3.0, 1.0, 2.0]) == Ratio("x", 2.0, 1.0, 3.0)


def recorded(folder: Path, *records: Record) -> None:
    for number, record in enumerate(records):
        (folder / f"{number}.json").write_text(record.to_json())


def test_compared_is_the_newest_of_its_kind(tmp_path: Path):
    assert last_measures(tmp_path, quick=True, num_cores=2) == {}
    newer = replace(BEFORE, when="newer")
    recorded(tmp_path, BEFORE, newer, replace(BEFORE, quick=False), replace(BEFORE, num_cores=64))
    found = last_measures(tmp_path, quick=True, num_cores=2)
    assert found == {"device": Measure("newer", {COST.name: COST}), "local": Measure("newer", {GAIN.name: GAIN})}


def test_compared_is_the_newest_of_each_section(tmp_path: Path):
    """A run of some sections only does not hide the others' last run."""
    recorded(tmp_path, BEFORE, replace(BEFORE, when="newer", sections={"local": [GAIN]}))
    found = last_measures(tmp_path, quick=True, num_cores=2)
    assert {name: measure.when for name, measure in found.items()} == {"device": BEFORE.when, "local": "newer"}


def test_what_fell_is_not_compared_with(tmp_path: Path):
    recorded(tmp_path, BEFORE, replace(after(0.9, 2.1), when="fell", fell=["device"]))
    found = last_measures(tmp_path, quick=True, num_cores=2)
    assert found["device"].ratios[COST.name].value == 0.50
    assert found["local"].ratios[GAIN.name].value == 2.1


def test_conclusion(capsys):
    before = measures_of(BEFORE)
    assert conclude(after(0.50, 2.0), [], 0) == 0
    told = capsys.readouterr().out
    assert "2 ratios in 60 s, 0 over their limits; no earlier run" in told
    assert "torch's bf16 hook refuses gloo" in told
    assert conclude(after(0.70, 2.0), [], 2) == 1
    assert "limit      device: time / theirs is 0.700, the limit 0.600" in capsys.readouterr().out
    assert conclude(after(0.58, 2.0), falls(after(0.58, 2.0), before), 2) == 1
    told = capsys.readouterr().out
    assert "fall       device: time / theirs fell by 14%" in told
    assert "2 compared with earlier runs, 1 falls" in told
    assert conclude(replace(BEFORE, left_out={"lab": "needs root: …"}), [], 2) == 0
    assert conclude(replace(BEFORE, left_out={"lab": "failed: line\nlast line"}), [], 2) == 1
    assert "left out   lab: last line" in capsys.readouterr().out


def test_section_shows_ratio_spread_limit_and_the_last_run():
    head, cost, gain = section_text("device", [COST, GAIN], {COST.name: replace(COST, value=0.4)}).splitlines()
    assert head.split() == ["device", "ratio", "from", "-", "to", "limit", "last"]
    assert cost.split() == ["time", "/", "theirs", "0.500", "0.450", "-", "0.550", "≤", "0.60", "0.400"]
    assert gain.split()[-2:] == ["≥", "1.00"]


@pytest.fixture
def two_sections(monkeypatch, tmp_path):
    """A suite of two sections that measure nothing, run in this process."""
    known = {
        "device": sections.Section(lambda quick: [COST], "one device"),
        "lab": sections.Section(lambda quick: [GAIN], "hosts", needs_root=True),
    }
    monkeypatch.setattr(sections, "SECTIONS", known)
    monkeypatch.setattr(suite, "RECORDS", tmp_path)
    monkeypatch.setattr(suite, "run_section", lambda name, options: known[name].measure(options.quick))
    return tmp_path


def test_run_is_recorded_and_compared(two_sections, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert suite.main(["--quick"]) == 0
    (path,) = two_sections.glob("*-quick.json")
    entry = json.loads(path.read_text())
    assert list(entry["sections"]) == ["device", "lab"]
    entry["sections"]["lab"][0]["value"] = 3.0
    path.write_text(json.dumps(entry))
    assert suite.main(["--quick", "--norecord"]) == 1
    assert "fall       lab: theirs / ours fell by 33%" in capsys.readouterr().out
    assert len(list(two_sections.iterdir())) == 1


def test_a_fall_stays_one_until_it_is_accepted(two_sections, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    good = replace(BEFORE, num_cores=len(os.sched_getaffinity(0)), sections={"lab": [replace(GAIN, value=3.0)]})
    (two_sections / "1.json").write_text(good.to_json())
    times = iter([f"2026-02-0{day}T00:00:00Z" for day in range(1, 5)])
    run_suite = suite.run_suite
    monkeypatch.setattr(suite, "run_suite", lambda *given: replace(run_suite(*given), when=next(times)))
    assert [suite.main(["--quick"]) for _ in range(2)] == [1, 1]
    assert suite.main(["--quick", "--accept"]) == 1
    assert suite.main(["--quick"]) == 0


def test_without_root_emulated_hosts_are_left_out(two_sections, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert suite.main(["--norecord"]) == 0
    told = capsys.readouterr().out
    assert "left out   lab: needs root: it emulates hosts by network namespaces" in told
    assert "theirs / ours" not in told


def test_what_needs_data_is_left_out_without_it(two_sections, monkeypatch, capsys):
    without = sections.Section(lambda quick: [GAIN], "digits", missing=lambda: "its data is not here: run `this`")
    monkeypatch.setitem(sections.SECTIONS, "digits", without)
    assert suite.main(["--norecord", "--sections=digits,device"]) == 0
    assert "left out   digits: its data is not here: run `this`" in capsys.readouterr().out


def test_unknown_section(two_sections, capsys):
    assert suite.main(["--sections=nothing"]) == 1
    assert "there is no section 'nothing'; sections: device, lab" in capsys.readouterr().err


def test_a_section_runs_in_its_own_process(monkeypatch, tmp_path):
    """`--one`, as the suite calls it."""
    monkeypatch.setattr(sections, "SECTIONS", {"device": sections.Section(lambda quick: [COST], "")})
    assert suite.main(["--one", "device", "--out", str(tmp_path / "out.json")]) == 0
    assert [Ratio(**entry) for entry in json.loads((tmp_path / "out.json").read_text())] == [COST]


# -- the command ------------------------------------------------------------------------------------------------------
def test_command_runs_the_suite_of_the_source_tree(monkeypatch):
    seen = []

    def run(words, cwd, check):
        seen.append((words[1:], cwd))
        return type("Done", (), {"returncode": 3})()

    monkeypatch.setattr(command.subprocess, "run", run)
    assert main(["bench", "--quick", "--sections", "device,data"]) == 3
    ((words, root),) = seen
    assert words == ["-m", "bench.suite", "--quick", "--sections=device,data"]
    assert (root / "bench" / "suite.py").is_file()


def test_command_elsewhere_says_where_to_run_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command.poseidon, "__file__", str(tmp_path / "poseidon" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    assert main(["bench"]) == 1
    assert "the benchmarks are in Poseidon's source tree, not in the package" in capsys.readouterr().err


def test_command_needs_files_that_are_there(capsys):
    assert main(["bench", "--against=none.json"]) == 1
    assert capsys.readouterr().err == "poseidon: error: --against=none.json: no such file\n"
