"""The merged timeline: two ranks whose events are written down here, beside the file they must give."""

from __future__ import annotations

import gzip
import json

import pytest

from poseidon.cli import main
from poseidon.errors import RecordError
from poseidon.record import Event, Facts, Trace, TraceWriter, write_facts
from poseidon.record.timeline import chrome_events, write_timeline
from tests.cli.screen import run_on_terminal
from tests.record import chrome_format

# Rank 1's clock is 100 s behind: its events are those of the same moments.
RANK_0 = (
    Event("iteration", "", 7, 10.0, 0.010),
    Event("forward", "ip", 7, 10.0, 0.004),
    Event("backward", "ip", 7, 10.004, 0.004),
    Event("ready", "ip/0", 7, 10.008, unit=0),
    Event("start", "ip/0", 7, 10.0085, unit=0),
    Event("move", "ip/0", 7, 10.0085, 0.003, 800, 0, 0),
    Event("move", "ip/0", 7, 10.009, 0.003, 400, 0, 1),
    Event("update", "ip/0", 7, 10.0115, 0.0005, unit=0),
    Event("end", "ip/0", 7, 10.0125, unit=0),
    Event("wait", "ip/0", 8, 10.0105, 0.002, unit=0),
)
RANK_1 = (Event("iteration", "", 7, -90.0, 0.009), Event("update", "", 7, -89.992, 0.001))


def slice_(rank, thread, name, kind, start, duration, **args):
    return {
        "name": name,
        "cat": kind,
        "pid": rank,
        "tid": thread,
        "ph": "X",
        "ts": start,
        "dur": duration,
        "args": args,
    }


def instant(rank, thread, name, kind, at, **args):
    return {"name": name, "cat": kind, "pid": rank, "tid": thread, "ph": "i", "s": "t", "ts": at, "args": args}


EXPECTED = [
    slice_(0, 1, "iteration 7", "iteration", 0.0, 10000.0, iteration=7),
    slice_(1, 1, "iteration 7", "iteration", 0.0, 9000.0, iteration=7),
    slice_(0, 1, "forward ip", "forward", 0.0, 4000.0, iteration=7),
    slice_(0, 1, "backward ip", "backward", 4000.0, 4000.0, iteration=7),
    slice_(1, 1, "update", "update", 8000.0, 1000.0, iteration=7),
    instant(0, 200, "ready ip/0", "ready", 8000.0, iteration=7, unit=0),
    slice_(0, 200, "move ip/0", "move", 8500.0, 3000.0, iteration=7, unit=0, chunk=0, bytes=800),
    instant(0, 200, "start ip/0", "start", 8500.0, iteration=7, unit=0),
    slice_(0, 201, "move ip/0", "move", 9000.0, 3000.0, iteration=7, unit=0, chunk=1, bytes=400),
    slice_(0, 1, "wait ip/0", "wait", 10500.0, 2000.0, iteration=8, unit=0),
    slice_(0, 100, "update ip/0", "update", 11500.0, 500.0, iteration=7, unit=0),
    instant(0, 200, "end ip/0", "end", 12500.0, iteration=7, unit=0),
]
ARROW = [("s", 1, 8000.0), ("t", 200, 8500.0), ("t", 201, 9000.0), ("f", 1, 12500.0)]
NAMES = {
    ("process_name", 0, 0): "rank 0 (a)",
    ("process_name", 1, 0): "rank 1 (b)",
    ("process_labels", 0, 0): "clock ±0 µs",
    ("process_labels", 1, 0): "clock ±250 µs",
    ("process_sort_index", 0, 0): 0,
    ("process_sort_index", 1, 0): 1,
    ("thread_name", 0, 1): "compute",
    ("thread_sort_index", 0, 1): 1,
    ("thread_name", 0, 100): "updates",
    ("thread_sort_index", 0, 100): 100,
    ("thread_name", 0, 200): "network",
    ("thread_sort_index", 0, 200): 200,
    ("thread_name", 0, 201): "network 2",
    ("thread_sort_index", 0, 201): 201,
    ("thread_name", 1, 1): "compute",
    ("thread_sort_index", 1, 1): 1,
}


@pytest.fixture
def folder(tmp_path):
    write_facts(tmp_path / "run", Facts("run", (), 0.0))
    for trace in (Trace(0, "a", 0.0, 0.0, 5.0, RANK_0), Trace(1, "b", 100.0, 0.00025, 5.0, RANK_1)):
        TraceWriter(tmp_path / "run", trace).close()
    return tmp_path / "run"


def in_order(entries):
    return sorted(json.dumps(entry, sort_keys=True) for entry in entries)


def test_all_ranks_come_into_one_file(folder, tmp_path, capsys):
    path = tmp_path / "t.json"
    assert main(["trace", str(folder), "-o", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 12 events of 2 ranks; clocks agree to 250 µs\n"
    document = json.loads(path.read_text())
    chrome_format.check(document)
    entries = document["traceEvents"]
    plain = [{key: e[key] for key in e if key != "cname"} for e in entries if e["ph"] in "Xi"]
    assert in_order(plain) == in_order(EXPECTED)
    assert [(e["ph"], e["tid"], e["ts"]) for e in entries if e["ph"] in "stf"] == ARROW
    names = {(e["name"], e["pid"], e["tid"]): next(iter(e["args"].values())) for e in entries if e["ph"] == "M"}
    assert names == NAMES
    assert [e["ph"] for e in entries[: len(NAMES)]] == ["M"] * len(NAMES)


def test_a_terminal_is_told_what_takes_long(folder):
    lines = run_on_terminal(main, ["trace", str(folder)], columns=200)
    assert any(line.endswith(f"reading {folder}") for line in lines)
    assert any(line.endswith(f"writing {folder}/timeline.json") for line in lines)


def test_a_packed_timeline_is_the_same(folder, tmp_path):
    assert main(["trace", str(folder)]) == 0
    assert main(["trace", str(folder), f"-o={tmp_path}/t.json.gz"]) == 0
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == (folder / "timeline.json").read_bytes()


def test_some_iterations_only(folder, capsys):
    assert main(["trace", str(folder), "--iterations=8:"]) == 0
    assert ": 1 events of 2 ranks" in capsys.readouterr().out
    assert main(["trace", str(folder), "--iterations=:7"]) == 1
    assert "no events were recorded; `poseidon train --trace" in capsys.readouterr().err
    assert main(["trace", str(folder), "--iterations=7"]) == 1
    assert "a range like 100:110, got '7'" in capsys.readouterr().err


def test_an_exchange_nobody_waits_for_ends_at_its_last_chunk():
    events = tuple(event for event in RANK_0 if event.kind != "wait")
    arrow = [entry for entry in chrome_events([Trace(0, "a", 0.0, 0.0, 0.0, events)]) if entry["ph"] in "stf"]
    assert [(entry["ph"], entry["tid"], entry["ts"]) for entry in arrow] == [*ARROW[:2], ("f", 201, 9000.0)]


def test_arrows_need_slices_at_both_ends():
    ready, move = RANK_0[3], RANK_0[5]
    for events in ((ready, move), (RANK_0[0], ready), (RANK_0[0], move)):
        assert not [e for e in chrome_events([Trace(0, "a", 0.0, 0.0, 0.0, events)]) if e["ph"] in "stf"]


def test_a_timeline_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"nowhere.*cannot be written there"):
        write_timeline(tmp_path / "nowhere" / "t.json", [Trace(0, "a", 0.0, 0.0, 0.0, RANK_0)])
