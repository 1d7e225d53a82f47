"""Snapshots in the background: of the moment they were taken, one at a time, and no reason to stop when they fail."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
import torch

from poseidon.errors import SnapshotError
from poseidon.solver import Action, events
from poseidon.solver.background import BackgroundWriter
from poseidon.solver.disk import Disk
from poseidon.solver.snapshot import newest_good, prune
from tests.solver.small import made, net_message, solver_message, values

LIMIT_S = 30.0
BY_FORMAT = pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])


class HeldDisk(Disk):
    """Begins to write only when it is told to."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.num_writing = self.most_writing = 0

    def create(self, path, fill):
        self.num_writing += 1
        self.most_writing = max(self.most_writing, self.num_writing)
        assert self.may_write.wait(LIMIT_S)
        super().create(path, fill)
        self.num_writing -= 1


class FullDisk(Disk):
    """Has no room from the n-th file on."""

    def __init__(self, first: int = 0) -> None:
        self.left = first

    def create(self, path, fill):
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().create(path, fill)


def with_writer(listing, tmp_path, text="", **options):
    param = solver_message(net_message(listing, dropout=0.3), f'snapshot_prefix: "{tmp_path}/s" {text}')
    solver, heard = made(param, **options)
    solver.writer = BackgroundWriter()
    return solver, heard


@BY_FORMAT
def test_training_goes_on_while_a_snapshot_waits_for_the_disk(listing, tmp_path, form):
    """It holds the moment it was taken: what another solver that stopped there has."""
    disk = HeldDisk()
    text = f"snapshot: 3 max_iter: 5 snapshot_format: {form}"
    solver, heard = with_writer(listing, tmp_path, text, disk=disk)
    solver.step(5)  # past the snapshot: nothing is on the disk yet
    assert solver.iter == 5
    assert heard.of(events.SnapshotWritten) == []
    disk.may_write.set()
    solver.writer.wait()
    (model,) = tmp_path.glob("s_iter_3.caffemodel*")
    assert (model.read_bytes()[:4] == b"\x89HDF") == (form == "HDF5")
    other, _ = made(solver.param)
    other.step(3)
    moment = values(other)
    restored, _ = made(solver.param)
    restored.restore(newest_good(f"{tmp_path}/s"))
    assert restored.iter == 3
    assert all(torch.equal(a, b) for a, b in zip(values(restored), moment, strict=True))
    for mine, expected in zip(restored.slots, other.slots, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine.history, expected.history, strict=True))
    restored.step(2)
    assert all(torch.equal(a, b) for a, b in zip(values(restored), values(solver), strict=True))


def test_snapshots_are_told_when_they_are_there(listing, tmp_path):
    solver, heard = with_writer(listing, tmp_path, "snapshot: 2 max_iter: 6")
    solver.solve()
    assert [event.iteration for event in heard.of(events.SnapshotStarted)] == [2, 4, 6]
    assert [event.iteration for event in heard.of(events.SnapshotWritten)] == [2, 4, 6]
    assert all(event.state.exists() for event in heard.of(events.SnapshotWritten))


def test_one_at_a_time(listing, tmp_path):
    disk = HeldDisk()
    solver, _ = with_writer(listing, tmp_path, "snapshot: 1 max_iter: 4", disk=disk)
    threading.Timer(0.2, disk.may_write.set).start()
    solver.solve()
    assert disk.most_writing == 1
    assert len(list(tmp_path.glob("*.solverstate"))) == 4


def test_a_full_disk_is_reported_and_training_goes_on(listing, tmp_path):
    solver, heard = with_writer(listing, tmp_path, "snapshot: 2 max_iter: 6", disk=FullDisk(first=3))
    solver.step(5)
    solver._report(solver.writer.wait())
    assert solver.iter == 5
    (failed,) = heard.of(events.SnapshotFailed)
    assert failed.iteration == 4
    assert "No space left on device" in failed.problem
    assert "the snapshots before it are whole" in failed.problem
    assert newest_good(f"{tmp_path}/s") == Path(f"{tmp_path}/s_iter_2.solverstate")
    assert not list(tmp_path.glob("*.partial-*"))


def test_the_last_snapshot_must_succeed(listing, tmp_path):
    solver, _ = with_writer(listing, tmp_path, "snapshot: 2 max_iter: 4", disk=FullDisk(first=3))
    with pytest.raises(SnapshotError, match=r"s_iter_4\.solverstate: cannot be written: .*No space left"):
        solver.solve()
    assert solver.iter == 4


def test_a_folder_that_becomes_a_file_is_reported(listing, tmp_path):
    """Root may write to read-only folders; nobody can write below a file."""
    folder = tmp_path / "snaps"
    folder.mkdir()
    solver, heard = with_writer(listing, folder, "snapshot: 2 max_iter: 8")
    folder.rmdir()
    folder.write_text("in the way")
    solver.step(3)
    solver._report(solver.writer.wait())
    assert [event.iteration for event in heard.of(events.SnapshotFailed)] == [2]
    folder.unlink()
    folder.mkdir()
    solver.step(2)
    solver._report(solver.writer.wait())
    assert [event.iteration for event in heard.of(events.SnapshotWritten)] == [4]


# -- keep -------------------------------------------------------------------------------------------------------------
@BY_FORMAT
def test_only_the_last_ones_are_kept(listing, tmp_path, form):
    solver, _ = with_writer(listing, tmp_path, f"snapshot: 1 max_iter: 5 snapshot_format: {form}")
    solver.keep = 2
    solver.solve()
    tail = ".h5" if form == "HDF5" else ""
    kept = {f"s_iter_{n}{ending}" for n in (4, 5) for ending in (f".caffemodel{tail}", f".solverstate{tail}")}
    kept |= {f"s_iter_{n}.poseidon.json" for n in (4, 5)}
    assert {path.name for path in tmp_path.glob("s_iter_*")} == kept


def test_a_failed_one_costs_no_older_one(listing, tmp_path):
    solver, _ = with_writer(listing, tmp_path, "snapshot: 1 max_iter: 9", disk=FullDisk(first=6))
    solver.keep = 1
    solver.step(4)
    solver.writer.wait()
    assert newest_good(f"{tmp_path}/s") == Path(f"{tmp_path}/s_iter_2.solverstate")


def test_others_and_newer_ones_stay(tmp_path):
    names = ["s_iter_1", "s_iter_2", "s_iter_3", "s_iter_9", "other_iter_1", "s_iter_1_iter_2"]
    for name in names:
        (tmp_path / f"{name}.solverstate").write_bytes(b"")
    removed = prune(f"{tmp_path}/s", 2, newest=3)
    assert [path.name for path in removed] == ["s_iter_1.solverstate"]
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {*names} - {"s_iter_1"}


# -- making room ------------------------------------------------------------------------------------------------------
def test_yielding_saves_in_any_case(listing, tmp_path):
    solver, heard = with_writer(listing, tmp_path, "max_iter: 9")
    solver.action = lambda: Action.YIELD if solver.iter == 3 else Action.NONE
    solver.solve()
    assert (solver.iter, solver.has_yielded) == (3, True)
    assert [event.iteration for event in heard.of(events.SnapshotWritten)] == [3]
    assert heard.all[-1] == events.SolvingDone(3, stopped_early=True)
    again, _ = with_writer(listing, tmp_path, "max_iter: 9")
    again.solve(newest_good(f"{tmp_path}/s"))
    whole, _ = made(solver.param)
    whole.step(9)
    assert all(torch.equal(a, b) for a, b in zip(values(again), values(whole), strict=True))


def test_snapshots_know_their_job(listing, tmp_path):
    for job, num_iterations in (("old", 8), ("new", 3)):
        solver, _ = with_writer(listing, tmp_path, "max_iter: 9")
        solver.job = job
        solver.step(num_iterations)
        solver.snapshot()
    prefix = f"{tmp_path}/s"
    assert newest_good(prefix).name == "s_iter_8.solverstate"
    assert newest_good(prefix, "new").name == "s_iter_3.solverstate"
    assert newest_good(prefix, "none") is None
