"""The rules of Chrome's trace-event format, as its published description has them, checked on a file's contents."""

from __future__ import annotations

from collections import defaultdict

PHASES = {"X", "i", "M", "s", "t", "f"}
METADATA = {"process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"}


def check(document) -> None:
    """Raises unless a document of complete events, instants, metadata and flows follows the rules."""
    entries = document["traceEvents"]
    assert document.get("displayTimeUnit") in (None, "ms", "ns")
    for entry in entries:
        assert entry["ph"] in PHASES
        assert isinstance(entry["pid"], int)
        assert isinstance(entry["tid"], int)
        assert isinstance(entry["name"], str)
        _check_fields(entry)
    timed = [entry for entry in entries if entry["ph"] != "M"]
    assert [entry["ts"] for entry in timed] == sorted(entry["ts"] for entry in timed)
    threads = defaultdict(list)
    for entry in timed:
        if entry["ph"] == "X":
            threads[entry["pid"], entry["tid"]].append((entry["ts"], entry["ts"] + entry["dur"]))
    named = {(entry["pid"], entry["tid"]) for entry in entries if entry["name"] == "thread_name"}
    assert {(entry["pid"], entry["tid"]) for entry in timed} <= named
    assert {entry["pid"] for entry in timed} <= {e["pid"] for e in entries if e["name"] == "process_name"}
    for spans in threads.values():
        _check_nesting(spans)
    _check_flows(timed, threads)


def _check_fields(entry) -> None:
    if entry["ph"] == "M":
        assert entry["name"] in METADATA
        (value,) = entry["args"].values()
        assert isinstance(value, int if entry["name"].endswith("sort_index") else str)
        return
    assert isinstance(entry["ts"], int | float)
    assert entry["ts"] >= 0
    if entry["ph"] == "X":
        assert entry["dur"] >= 0
    if entry["ph"] == "i":
        assert entry["s"] in ("g", "p", "t")


def _check_nesting(spans) -> None:
    """Slices of one thread lie beside or inside each other (to a nanosecond)."""
    open_until: list[float] = []
    for start, end in spans:
        while open_until and open_until[-1] <= start + 1e-3:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-3, (start, end, open_until)
        open_until.append(end)


def _check_flows(timed, threads) -> None:
    """A flow starts once, ends once, in order of time, each of its points within a slice of its thread."""
    flows = defaultdict(list)
    for entry in timed:
        if entry["ph"] in "stf":
            flows[entry["cat"], entry["name"], entry["id"]].append(entry)
    for points in flows.values():
        phases = "".join(point["ph"] for point in points)
        assert phases[0] == "s"
        assert phases[-1] == "f"
        assert set(phases[1:-1]) <= {"t"}
        for point in points:
            spans = threads[point["pid"], point["tid"]]
            assert any(start - 1e-3 <= point["ts"] <= end + 1e-3 for start, end in spans), point
