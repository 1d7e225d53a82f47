"""What a narrow wire still owes goes into a snapshot, into a file of its own, and comes back to whom it belongs."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch

from poseidon.errors import SnapshotError
from poseidon.plan import Scheme
from poseidon.solver.attached import Attached, put_back, taken_out
from poseidon.solver.snapshot import is_good, open_snapshot, prune
from tests.run.jobs import in_team, parameters, solver_param
from tests.solver.small import net_text

SIZE = 3


def finished(worker):
    worker.solver.step(worker.solver.param.max_iter - worker.solver.iter)
    return parameters(worker.solver)


def param_in(folder, listing):
    text = f'max_iter: 9 snapshot: 4 snapshot_prefix: "{folder / "s"}"'
    return solver_param(net_text(listing, batch=2), text)


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER, Scheme.FACTOR_SERVER])
def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(listing, tmp_path, scheme, wire):
    param = param_in(tmp_path, listing)

    def resumed(worker):
        worker.solver.restore(tmp_path / "s_iter_4.solverstate")
        return finished(worker)

    uninterrupted = in_team(SIZE, param, finished, scheme=scheme, wire=wire)
    again = in_team(SIZE, param, resumed, scheme=scheme, wire=wire)
    for mine, before in zip(again, uninterrupted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, before, strict=True))


def test_it_is_in_a_file_beside_the_sidecar_and_vouched_for(listing, tmp_path):
    """The sidecar has a limit of size, which what a large net owes would exceed."""

    def act(worker):
        worker.solver.step(4)
        return {name: tensor.clone() for name, tensor in worker.distribution.updates.wire_state().items()}

    owed = in_team(SIZE, param_in(tmp_path, listing), act, scheme=Scheme.RING, wire="bf16")
    stored = safetensors.torch.load_file(tmp_path / "s_iter_4.poseidon.safetensors")
    sidecar = json.loads((tmp_path / "s_iter_4.poseidon.json").read_text())
    assert "s_iter_4.poseidon.safetensors" in sidecar["files"]
    assert len(stored) == sum(map(len, owed)) > 0
    with open_snapshot(tmp_path / "s_iter_4.solverstate") as snapshot:
        for mine, worker in zip(owed, snapshot.continuation["team"]["workers"], strict=True):
            assert worker["wire"].keys() == mine.keys()
            assert any(tensor.any() for tensor in mine.values())
            for name, tensor in mine.items():
                assert torch.equal(worker["wire"][name].read(), tensor)


def test_damage_to_it_is_noticed(listing, tmp_path):
    in_team(2, param_in(tmp_path, listing), lambda worker: worker.solver.step(4), scheme=Scheme.RING, wire="fp16")
    state, tensors = tmp_path / "s_iter_4.solverstate", tmp_path / "s_iter_4.poseidon.safetensors"
    assert is_good(state)
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)
    with (
        pytest.raises(SnapshotError, match=r"s_iter_4\.poseidon\.safetensors has other contents"),
        open_snapshot(state),
    ):
        pass
    tensors.unlink()
    assert not is_good(state)


def test_it_goes_with_its_snapshot(listing, tmp_path):
    in_team(2, param_in(tmp_path, listing), finished, scheme=Scheme.RING, wire="fp16")
    assert len(list(tmp_path.glob("s_iter_*.safetensors"))) == 2
    prune(str(tmp_path / "s"), 1, 9)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["s_iter_8.poseidon.safetensors"]


def test_nothing_owed_needs_no_file(listing, tmp_path):
    in_team(2, param_in(tmp_path, listing), finished, scheme=Scheme.RING)
    assert not list(tmp_path.glob("*.safetensors"))


def test_tensors_anywhere_in_a_value_are_taken_out_and_noted(tmp_path):
    value = {"a": [1, {"b": torch.ones(2)}, "x"], "c": torch.zeros(3, dtype=torch.bfloat16), "d": {}}
    noted, tensors = taken_out(value)
    assert json.loads(json.dumps(noted)) == noted
    assert [tensor.shape for tensor in tensors.values()] == [(2,), (3,)]
    found = put_back(noted, tmp_path / "file")
    assert found["a"][1]["b"] == Attached(tmp_path / "file", "0")
    assert found["c"] == Attached(tmp_path / "file", "1")
    assert (found["a"][0], found["a"][2], found["d"]) == (1, "x", {})
    with pytest.raises(SnapshotError, match="tensor '1' cannot be read"):
        found["c"].read()
