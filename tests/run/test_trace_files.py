"""Traces of ranks whose hosts share no disk come to rank 0's folder; what it sees already stays."""

from __future__ import annotations

import pytest

from poseidon.run import trace_files
from poseidon.run.roundtable import Roundtable
from poseidon.run.trace_files import bring_traces
from poseidon.transport.inproc import run_workers


def text_of(rank):
    return f'{{"rank": {rank}}}\n' + "".join(f"line {number} of {rank}\n" for number in range(50))


def brought(folders):
    """What the workers leave, each of whom has written to its own folder."""
    for rank, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        (folder / f"trace-{rank}.jsonl").write_text(text_of(rank))
    run_workers(len(folders), lambda t: bring_traces(Roundtable(t), folders[t.rank]), timeout_s=60)
    return [(folders[0] / f"trace-{rank}.jsonl").read_text() for rank in range(len(folders))]


@pytest.mark.parametrize("piece", [7, 1 << 20])
def test_files_of_other_hosts_are_brought(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(trace_files, "PIECE_BYTES", piece)
    (tmp_path / "h0").mkdir()
    (tmp_path / "h0" / "trace-2.jsonl").write_text("of another run\n")
    folders = [tmp_path / "h0", tmp_path / "h0", tmp_path / "h1"]
    assert brought(folders) == [text_of(0), text_of(1), text_of(2)]


def test_nothing_is_sent_where_all_share_a_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "_give", None)  # would be called
    assert brought([tmp_path, tmp_path]) == [text_of(0), text_of(1)]


def test_a_full_disk_holds_up_nobody(tmp_path, monkeypatch, caplog):
    (tmp_path / "h0").mkdir()
    (tmp_path / "h0" / "trace-1.jsonl").mkdir()  # cannot be written
    folders = [tmp_path / "h0", tmp_path / "h1"]
    for rank, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        (folder / f"trace-{rank}.jsonl").is_dir() or (folder / f"trace-{rank}.jsonl").write_text(text_of(rank))
    run_workers(2, lambda t: bring_traces(Roundtable(t), folders[t.rank]), timeout_s=60)
    assert "cannot be written there" in caplog.text
