"""Solver states on their own: written and read back, and whatever else a file may hold."""

from __future__ import annotations

import contextlib

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poseidon.errors import PoseidonError, SnapshotError
from poseidon.solver.snapshot import is_good
from poseidon.solver.state_file import SolverState, open_state, write_state

STATE = SolverState(
    iteration=1234,
    current_step=2,
    learned_net="a folder/nét_iter_1234.caffemodel",
    history=[np.float32([[1, 2], [3, 4]]), np.float32(7), np.zeros((0, 3), np.float32), np.float64([0.1, 0.2])],
)
BY_FORMAT = pytest.mark.parametrize("as_hdf5", [False, True], ids=["binary", "hdf5"])


@BY_FORMAT
def test_what_is_written_is_read(tmp_path, as_hdf5):
    path = tmp_path / "any name"
    write_state(STATE, path, as_hdf5=as_hdf5)
    with open_state(path) as found:
        assert (found.iteration, found.current_step, found.learned_net) == (1234, 2, STATE.learned_net)
        for blob, expected in zip(found.history, STATE.history, strict=True):
            assert blob.shape == expected.shape
            values = blob.read("blob")
            assert values.dtype == expected.dtype
            np.testing.assert_array_equal(values, expected)


def test_states_from_before_2015_have_four_axes(tmp_path):
    """num, channels, height and width (fields 1 to 4), data (5, packed), in history (3) of a state with iter 7."""
    blob = b"\x08\x01\x10\x01\x18\x01\x20\x02" + b"\x2a\x08" + np.float32([5, 6]).tobytes()
    (tmp_path / "old").write_bytes(b"\x08\x07" + b"\x1a" + bytes([len(blob)]) + blob)
    with open_state(tmp_path / "old") as found:
        assert (found.iteration, found.learned_net) == (7, None)
        assert found.history[0].fits((2,))
        np.testing.assert_array_equal(found.history[0].read("blob").reshape(-1), [5, 6])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: f.__delitem__("iter"), "found no `iter`"),
        (lambda f: f.__delitem__("history"), "found no `iter` and `history`"),
        (lambda f: f["history"].move("1", "x"), "found no history/1, expected datasets 0 to 3"),
        (lambda f: replaced(f, "iter", np.float32([3])), "`iter` holds something else, expected one whole number"),
        (lambda f: replaced(f, "current_step", np.int32([3, 4])), "`current_step` holds something else"),
        (lambda f: replaced(f, "learned_net", np.int32([3])), "`learned_net` holds something else"),
        (lambda f: linked(f, "iter"), "is a link to somewhere else"),
    ],
)
def test_hdf5_that_is_no_state(tmp_path, spoil, message):
    path = tmp_path / "s.solverstate.h5"
    write_state(STATE, path, as_hdf5=True)
    with h5py.File(path, "a") as file:
        spoil(file)
    with pytest.raises(SnapshotError, match=message), open_state(path):
        pass


def replaced(file, name, value):
    del file[name]
    file[name] = value


def linked(file, name):
    del file[name]
    file[name] = h5py.ExternalLink("/etc/passwd", "x")


def test_a_history_that_claims_more_than_the_file_holds(tmp_path):
    path = tmp_path / "s_iter_1.solverstate.h5"
    write_state(SolverState(1, 0, "m.caffemodel", []), path, as_hdf5=True)
    with h5py.File(path, "a") as file:
        del file["learned_net"]
        file["history"].create_dataset("0", (1 << 40,), "f4", chunks=(1 << 20,))
    assert not is_good(path)


def test_what_protobuf_cannot_hold_goes_to_hdf5(tmp_path, monkeypatch):
    monkeypatch.setattr("poseidon.spec.binary.MAX_BINARY_BYTES", 50)
    with pytest.raises(SnapshotError, match=r"SolverState has \d+ bytes.*set snapshot_format: HDF5"):
        write_state(STATE, tmp_path / "s", as_hdf5=False)


def test_no_iteration(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(SnapshotError, match="names no iteration"), open_state(tmp_path / "empty"):
        pass


@BY_FORMAT
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6), cut=st.booleans()
)
def test_damaged_files_give_our_errors_or_a_state(tmp_path, as_hdf5, edits, cut):
    path = tmp_path / "s_iter_1.solverstate"
    write_state(STATE, path, as_hdf5=as_hdf5)
    data = bytearray(path.read_bytes())
    for place, value in edits:
        data[place % len(data)] = value
    path.write_bytes(data[: edits[0][0] % len(data)] if cut else data)
    is_good(path)
    with contextlib.suppress(PoseidonError), open_state(path) as found:
        for blob in found.history:
            if np.prod(blob.shape, dtype=float) < 1e6:
                blob.read("blob")
