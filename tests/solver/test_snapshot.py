"""Snapshots: exact resumption, and what is left after damage, failure and moves. (Kills are in test_kill.py.)"""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from poseidon.errors import SnapshotError
from poseidon.solver import Solver, events, newest_good
from poseidon.solver.disk import Disk
from poseidon.spec import caffe_pb2, parse
from tests.solver.golden import SOLVERS, copy_case
from tests.solver.small import losses, made, net_message, solver_message, values

BY_FORMAT = pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])


@pytest.fixture
def prefix(tmp_path):
    (tmp_path / "snaps").mkdir()
    return str(tmp_path / "snaps" / "run.v1")


def message(listing, prefix, text="", **net) -> caffe_pb2.SolverParameter:
    return solver_message(net_message(listing, **net), f'snapshot_prefix: "{prefix}" {text}')


def same(one: Solver, other: Solver) -> bool:
    mine = [*values(one), *(history for slot in one.slots for history in slot.history)]
    others = [*values(other), *(history for slot in other.slots for history in slot.history)]
    return all(torch.equal(a, b) for a, b in zip(mine, others, strict=True))


# -- resuming -------------------------------------------------------------------------------------------------------
@BY_FORMAT
@pytest.mark.parametrize("rule", ["SGD", "Adam"])
def test_a_resumed_run_repeats_the_uninterrupted_one(listing, prefix, form, rule):
    """Without random_seed: the draws, the shuffle and the position come from the snapshot alone."""
    text = f"""random_seed: -1 type: "{rule}" snapshot_format: {form} iter_size: 2 average_loss: 4 display: 1
               test_interval: 3 test_iter: 2 lr_policy: "multistep" gamma: 0.5 stepvalue: 3 stepvalue: 7"""
    param = message(listing, prefix, text, shuffle=True, dropout=0.4)
    solver, heard = made(param)
    solver.step(5)
    files = solver.snapshot()
    heard.all.clear()
    solver.step(6)
    resumed, heard_again = made(param)
    resumed.restore(files.state)
    assert heard_again.of(events.Restored) == [events.Restored(str(files.state), 5, exact=True)]
    heard_again.all.clear()
    resumed.step(6)
    assert same(solver, resumed)
    for kind in (events.TestDone, events.StepAdvanced, events.RateShown):
        assert heard.of(kind) == heard_again.of(kind) != []
    assert losses(heard) == losses(heard_again)


def test_the_loss_window_goes_on(listing, prefix):
    param = message(listing, prefix, "average_loss: 3")
    solver, heard = made(param)
    solver.step(4)
    files = solver.snapshot()
    solver.step(3)
    whole, _ = made(param)
    whole.step(7)
    resumed, heard_again = made(param)
    resumed.restore(files.state)
    resumed.step(3)
    smoothed = [float(event.smoothed_loss) for event in heard_again.of(events.IterationDone)]
    own = losses(heard)
    np.testing.assert_allclose(smoothed, [np.mean(own[i - 2 : i + 1]) for i in (4, 5, 6)], rtol=1e-5)


def test_recurrent_state_goes_on(listing, prefix):
    net = parse(
        """layer { name: "x" type: "DummyData" top: "x" top: "cont" top: "y"
             dummy_data_param { shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 dim: 2 } shape { dim: 3 dim: 2 dim: 5 }
               data_filler { type: "gaussian" } data_filler { value: 1 } data_filler { type: "uniform" } } }
           layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "h"
             recurrent_param { num_output: 5 weight_filler { type: "uniform" min: -0.5 max: 0.5 } } }
           layer { name: "loss" type: "EuclideanLoss" bottom: "h" bottom: "y" top: "loss" }""",
        caffe_pb2.NetParameter(),
        "lstm.prototxt",
    )
    param = solver_message(net, f'snapshot_prefix: "{prefix}"')
    solver, _ = made(param)
    solver.step(3)
    files = solver.snapshot()
    solver.step(2)
    resumed, _ = made(param)
    resumed.restore(files.state)
    resumed.step(2)
    assert same(solver, resumed)
    fresh, _ = made(param)
    fresh.restore(files.state)
    fresh.net.layers["lstm"].reset_state()
    fresh.step(2)
    assert not same(solver, fresh), "the state does matter here"


def test_solve_resumes(listing, prefix):
    param = message(listing, prefix, "max_iter: 7 snapshot: 3")
    solver, _ = made(param)
    solver.solve()
    resumed, heard = made(param)
    resumed.solve(resume=f"{prefix}_iter_3.solverstate")
    assert same(solver, resumed)
    assert [event.iteration for event in heard.of(events.IterationDone)] == [3, 4, 5, 6]


def test_what_else_has_state_can_join(listing, prefix):
    class Residue:
        def __init__(self, value):
            self.value = value

        def state(self):
            return self.value

        def restore(self, state):
            self.value = state

    solver, _ = made(message(listing, prefix))
    solver.stateful["residue"] = Residue([1.5, "x"])
    files = solver.snapshot()
    other, _ = made(message(listing, prefix))
    other.stateful["residue"] = Residue(None)
    other.restore(files.state)
    assert other.stateful["residue"].value == [1.5, "x"]
    plain = Solver(message(listing, prefix))
    plain.restore(files.state)  # a state nobody asks for is no obstacle
    other.stateful["plan"] = Residue(None)
    with pytest.raises(SnapshotError, match="holds no state of 'plan'"):
        other.restore(files.state)


def test_frozen_layers_with_momentum_left_keep_moving_as_in_caffe(listing, prefix):
    solver, _ = made(message(listing, prefix))
    solver.step(3)
    files = solver.snapshot()
    frozen = message(listing, prefix, "weight_decay: 0")
    for spec in frozen.net_param.layer[1].param:
        spec.lr_mult = 0
    resumed, _ = made(frozen)
    resumed.restore(files.state)
    before, velocity = values(resumed)[0], resumed.slots[0].history[0].clone()
    resumed.step(1)
    torch.testing.assert_close(values(resumed)[0], before - 0.9 * velocity)


# -- files ----------------------------------------------------------------------------------------------------------
class Diary(Disk):
    """Notes what is done, and fails at one of the operations."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.done: list[str] = []
        self._fails_at = fails_at

    def _note(self, what: str) -> None:
        if self._fails_at == len(self.done):
            raise OSError(28, "No space left on device")
        self.done.append(what)

    def create(self, path, fill):
        self._note(f"create {path.name}")
        super().create(path, fill)

    def publish(self, temporary, path):
        self._note(f"publish {path.name}")
        super().publish(temporary, path)

    def settle(self, folder):
        self._note("settle")
        super().settle(folder)


@BY_FORMAT
def test_the_state_gets_its_name_last(listing, prefix, form):
    disk, tail = Diary(), ".h5" if form == "HDF5" else ""
    solver, _ = made(message(listing, prefix, f"snapshot_format: {form}"), disk=disk)
    solver.step(2)
    solver.snapshot()
    names = [
        f"run.v1_iter_2.caffemodel{tail}",
        "run.v1_iter_2.poseidon.json",
        "settle",
        f"run.v1_iter_2.solverstate{tail}",
        "settle",
    ]
    assert [entry.removeprefix("publish ") for entry in disk.done[3:]] == names
    found = sorted(path.name for path in Path(prefix).parent.iterdir())
    assert found == sorted({name for name in names if name != "settle"})


@BY_FORMAT
@pytest.mark.parametrize("fails_at", range(8))
def test_a_full_disk_leaves_the_snapshot_before_it(listing, prefix, form, fails_at):
    param = message(listing, prefix, f"snapshot_format: {form}")
    first, _ = made(param)
    first.step(2)
    good = first.snapshot().state
    solver, _ = made(param, disk=Diary(fails_at))
    solver.restore(good)
    solver.step(1)
    with pytest.raises(SnapshotError, match=r"iter_3.solverstate.*No space left on device.*before it are whole"):
        solver.snapshot()
    if fails_at < 7:  # the last operation only makes sure of what is complete
        assert newest_good(prefix) == good
    assert not [path for path in Path(prefix).parent.iterdir() if "partial" in path.name]
    made(param)[0].restore(newest_good(prefix))


def test_leftovers_of_the_dead_are_removed_at_the_next_start_and_no_others(listing, prefix):
    host = "".join(c if c.isalnum() else "_" for c in socket.gethostname())
    dead, living = dead_process(), os.getppid()
    gone = [
        f"{prefix}_iter_4.caffemodel.partial-{host}-{dead}.caffemodel",
        f"{prefix}_iter_4.solverstate.h5.partial-{host}-{dead}.h5",
        f"{Path(prefix).parent}/.run.v1_iter_4.caffemodel.h5.partial-{host}-{dead}.h5.0123abcd",
    ]
    kept = [
        f"{prefix}_iter_4.caffemodel.partial-{host}-{living}.caffemodel",
        f"{prefix}_iter_4.caffemodel.partial-elsewhere-{dead}.caffemodel",
        f"{prefix}2_iter_4.caffemodel.partial-{host}-{dead}.caffemodel",
        f"{prefix}_iter_2.caffemodel",
        f"{prefix}_notes.txt",
    ]
    for path in gone + kept:
        Path(path).touch()
    made(message(listing, prefix))
    assert not any(Path(path).exists() for path in gone)
    assert all(Path(path).exists() for path in kept)


def dead_process() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def test_a_snapshot_moved_elsewhere_takes_its_own_weights(listing, prefix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    param = message(listing, "here")
    solver, _ = made(param)
    solver.step(2)
    solver.snapshot()
    expected = values(solver)
    shutil.copytree(tmp_path, tmp_path.with_name(tmp_path.name + "_moved"))
    other, _ = made(message(listing, "here", "random_seed: 9"))
    other.step(2)
    other.snapshot()  # of the same name, in the current folder
    resumed, _ = made(param)
    resumed.restore(tmp_path.with_name(tmp_path.name + "_moved") / "here_iter_2.solverstate")
    assert all(torch.equal(a, b) for a, b in zip(values(resumed), expected, strict=True))


# -- damage ---------------------------------------------------------------------------------------------------------
def two_snapshots(listing, prefix, form="BINARYPROTO"):
    solver, _ = made(message(listing, prefix, f"snapshot_format: {form}"))
    solver.step(2)
    old = solver.snapshot()
    solver.step(2)
    return solver, old, solver.snapshot()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 0x10
    path.write_bytes(data)


@BY_FORMAT
@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink], ids=["truncated", "flipped", "missing"])
@pytest.mark.parametrize("which", ["model", "state", "sidecar"])
def test_damage_is_named_and_the_newest_good_one_offered(listing, prefix, form, damage, which):
    solver, old, new = two_snapshots(listing, prefix, form)
    damaged = getattr(new, which)
    damage(damaged)
    if which == "sidecar" and not damaged.exists():  # then it is as good as one of Caffe's
        assert newest_good(prefix) == new.state
        return
    assert newest_good(prefix) == (old.state)
    before = values(solver)
    with pytest.raises(SnapshotError) as caught:
        solver.restore(new.state)
    text = str(caught.value)
    assert str(damaged) in text
    assert f"the newest good snapshot beside it is {old.state}: restore that one" in text
    assert all(torch.equal(a, b) for a, b in zip(values(solver), before, strict=True))
    assert solver.iter == 4


def test_no_good_snapshot_at_all(listing, prefix):
    solver, old, new = two_snapshots(listing, prefix)
    truncate(old.model)
    truncate(new.model)
    assert newest_good(prefix) is None
    with pytest.raises(SnapshotError, match=r"is damaged.*there is no good snapshot beside it"):
        solver.restore(new.state)
    assert newest_good("/nowhere/at/all") is None


def test_a_missing_state_offers_what_there_is(listing, prefix):
    solver, _, new = two_snapshots(listing, prefix)
    with pytest.raises(SnapshotError, match=rf"iter_9.solverstate: no such file; the newest good .* is {new.state}"):
        solver.restore(f"{prefix}_iter_9.solverstate")


@pytest.mark.parametrize("damage", [truncate, Path.unlink], ids=["truncated", "missing"])
@pytest.mark.parametrize("which", ["caffemodel", "solverstate"])
@pytest.mark.parametrize("tail", ["", ".h5"])
def test_damage_to_caffes_own_files(which, damage, tail, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = next(case for case in SOLVERS if case.name == "adam_poly")
    copy_case(folder, tmp_path, with_snapshots=True)
    solver = Solver(f"solver{'_h5' if tail else ''}.prototxt")
    damage(tmp_path / f"snap_iter_6.{which}{tail}")
    other = Path(f"snap_iter_6.solverstate{'' if tail else '.h5'}")
    with pytest.raises(SnapshotError, match=f"the newest good snapshot beside it is {other}"):
        solver.restore(f"snap_iter_6.solverstate{tail}")
    assert newest_good("snap") == other


def test_numbers_are_compared_as_numbers(listing, prefix):
    solver, _ = made(message(listing, prefix))
    for iteration in (9, 10, 100):
        solver.step(iteration - solver.iter)
        files = solver.snapshot()
    assert newest_good(prefix) == files.state


# -- of another net -------------------------------------------------------------------------------------------------
@BY_FORMAT
def test_snapshots_of_other_nets_and_solvers_are_refused(listing, prefix, form):
    _, _, new = two_snapshots(listing, prefix, form)
    adam, _ = made(message(listing, prefix, 'type: "Adam"'))
    with pytest.raises(SnapshotError, match=r"has 4 history blob\(s\), expected 8 for a solver of type Adam and 4"):
        adam.restore(new.state)
    wider = message(listing, prefix)
    wider.net_param.layer[1].inner_product_param.num_output = 6
    with pytest.raises(SnapshotError, match="history 0 has shape 5 x 3, expected 6 x 3; it belongs to another net"):
        made(wider)[0].restore(new.state)
    renamed = message(listing, prefix)
    renamed.net_param.layer[1].name = "other"
    refused, _ = made(renamed)
    before = values(refused)
    with pytest.raises(SnapshotError, match=r"no weights of layer 'other'.*whole, so it belongs to another net"):
        refused.restore(new.state)
    assert all(torch.equal(a, b) for a, b in zip(values(refused), before, strict=True))
    assert refused.iter == 0


def test_a_caffemodel_is_not_a_state(listing, prefix):
    solver, _, new = two_snapshots(listing, prefix)
    with pytest.raises(SnapshotError, match="caffemodel"):
        solver.restore(new.model)


def test_a_sidecar_of_another_version_is_refused(listing, prefix):
    from poseidon.solver import sidecar

    solver, _, new = two_snapshots(listing, prefix)
    body = json.loads(new.sidecar.read_text())
    body["version"] = 99
    del body["checksum"]
    new.sidecar.write_text(json.dumps({**body, "checksum": sidecar._checksum(body)}))
    with pytest.raises(SnapshotError, match="has version 99, expected 1"):
        solver.restore(new.state)


def test_what_cannot_be_understood_in_a_whole_sidecar(listing, prefix):
    from poseidon.solver import sidecar

    solver, _, new = two_snapshots(listing, prefix)
    for spoil in ("continuation", "files"):
        body = json.loads(new.sidecar.read_text())
        body[spoil] = {"train": 3} if spoil == "continuation" else {new.state.name: 1}
        del body["checksum"]
        new.sidecar.write_text(json.dumps({**body, "checksum": sidecar._checksum(body)}))
        with pytest.raises(SnapshotError, match=r"sidecar cannot be used|is damaged"):
            solver.restore(new.state)


# -- limits ---------------------------------------------------------------------------------------------------------
def test_what_protobuf_cannot_hold_goes_to_hdf5(listing, prefix, monkeypatch):
    solver, _, new = two_snapshots(listing, prefix)
    solver.step(1)
    monkeypatch.setattr("poseidon.spec.binary.MAX_BINARY_BYTES", new.model.stat().st_size - 1)
    with pytest.raises(SnapshotError, match=r"caffemodel.*protobuf's limit.*snapshot_format: HDF5"):
        solver.snapshot()
    monkeypatch.undo()
    assert newest_good(prefix) == new.state


def test_a_window_of_another_size_begins_anew(listing, prefix):
    solver, _ = made(message(listing, prefix, "average_loss: 5"))
    solver.step(4)
    files = solver.snapshot()
    resumed, heard = made(message(listing, prefix, "average_loss: 2"))
    resumed.restore(files.state)
    resumed.step(1)
    (done,) = heard.of(events.IterationDone)
    assert float(done.smoothed_loss) == float(done.loss)


def test_a_solver_that_never_writes_needs_no_place_to_write(listing, tmp_path):
    """One of several workers: rank 0 has the disk."""
    param = message(listing, tmp_path / "nowhere" / "s", "snapshot: 2")
    with pytest.raises(SnapshotError, match="cannot write to snapshot_prefix"):
        Solver(param)
    Solver(param, writes=False).step(1)
