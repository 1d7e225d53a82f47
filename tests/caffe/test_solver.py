"""Solvers through `import caffe`: classes, steps, diffs, snapshots, callbacks, logs."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import numpy as np
import pytest

import caffe
from tests.caffe.nets import NUM_CLASSES, SIMPLE, equal_params, write

SETTINGS = """
    test_iter: 10 test_interval: 10 base_lr: 0.01 momentum: 0.9 weight_decay: 0.0005
    lr_policy: 'inv' gamma: 0.0001 power: 0.75 display: 100 max_iter: 100 snapshot_after_train: false
    snapshot_prefix: 'model' random_seed: 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, SIMPLE)
    write(tmp_path, f"net: 'net.prototxt' {SETTINGS}", "solver.prototxt")
    return tmp_path


@pytest.fixture
def solver():
    solver = caffe.SGDSolver("solver.prototxt")
    for net in (solver.net, *solver.test_nets):
        net.blobs["label"].data[...] = np.arange(5).reshape(5, 1, 1, 1)
    return solver


def test_solve_goes_to_the_end(solver):
    assert (solver.iter, len(solver.test_nets)) == (0, 1)
    solver.solve(None)
    assert solver.iter == 100
    assert (solver.net.blobs["label"].data.reshape(-1) == range(5)).all()  # edits of constant data stay
    assert solver.test_nets[0].blobs["loss"].data > 0  # the tests ran on the net one sees


def test_apply_update_uses_the_diffs_as_they_are(solver):
    weight = solver.net.layers[1].blobs[0]
    data = weight.data[...]
    data[...] = 0
    weight.diff[...] = 1
    solver.apply_update()
    np.testing.assert_allclose(data, -0.01, atol=1e-7)
    np.testing.assert_allclose(weight.diff, 0.01, atol=1e-7)
    assert solver.iter == 1
    assert solver.lr == pytest.approx(0.01 * 1.0001**-0.75, rel=1e-6)


def test_nets_outlive_the_solver(solver):
    nets = [solver.net, *solver.test_nets]
    del solver
    gc.collect()
    for net in nets:
        blobs = [*net.blobs.values(), *(blob for blobs in net.params.values() for blob in blobs)]
        assert np.isfinite(sum(blob.data.sum() + blob.diff.sum() for blob in blobs))


def test_snapshot_and_restore(solver):
    solver.step(3)
    solver.snapshot()
    assert Path("model_iter_3.caffemodel").is_file()
    other = caffe.get_solver("solver.prototxt")
    other.restore("model_iter_3.solverstate")
    assert other.iter == 3
    assert equal_params(solver.net, other.net)
    assert equal_params(other.net, other.test_nets[0])
    other.solve("model_iter_3.solverstate")
    assert other.iter == 100
    with pytest.raises(RuntimeError, match="Could not open file"):
        other.restore("model_iter_4.solverstate")


def test_the_test_nets_read_the_train_nets_parameters(solver):
    solver.net.params["conv"][1].data[...] = 9
    assert (solver.test_nets[0].params["conv"][1].data == 9).all()


def test_after_a_step_the_diffs_are_what_was_subtracted(solver):
    blobs = [blob for blobs in solver.net.params.values() for blob in blobs]
    views = [(blob.data, blob.diff) for blob in blobs]
    for _ in range(3):
        before = [data.copy() for data, _ in views]
        solver.step(1)
        for old, (data, diff) in zip(before, views, strict=True):
            assert diff.any()
            np.testing.assert_allclose(data, old - diff, rtol=1e-5, atol=1e-6)


def test_a_step_by_hand_is_a_step(solver):
    """clear, forward, backward, apply_update in a loop of one's own, against `step`, with the same seed."""
    other = caffe.SGDSolver("solver.prototxt")
    for net in (other.net, *other.test_nets):
        net.blobs["label"].data[...] = np.arange(5).reshape(5, 1, 1, 1)
    assert equal_params(solver.net, other.net)
    for _ in range(3):
        other.net.clear_param_diffs()
        other.net.forward()
        other.net.backward()
        other.apply_update()
    solver.step(3)
    assert other.iter == solver.iter == 3
    for name, blobs in solver.net.params.items():
        for mine, theirs in zip(blobs, other.net.params[name], strict=True):
            np.testing.assert_allclose(mine.data, theirs.data, rtol=1e-5, atol=1e-6)


def test_forward_and_backward_between_steps(solver):
    for _ in range(3):
        solver.step(1)
        solver.test_nets[0].forward()
        solver.net.backward()  # through what the last step computed, although parameters have changed since
        loss = solver.net.forward()["loss"]
    assert np.isfinite(loss)


def test_callbacks(solver):
    calls = []
    solver.add_callback(lambda: calls.append("start"), lambda: calls.append(solver.net.params["ip"][1].diff.any()))
    solver.step(2)
    assert calls == ["start", True, "start", True]


def test_a_layers_callback_runs_in_steps(solver):
    layers = []
    solver.net.after_backward(layers.append)
    solver.step(1)
    assert layers == [3, 2, 1, 0]


def test_weights_shared_with_another_net(solver):
    net = caffe.Net("net.prototxt", caffe.TEST)
    solver.share_weights(net)
    solver.step(1)
    assert equal_params(solver.net, net)


@pytest.mark.parametrize("rule", ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"])
def test_every_rule_has_its_class_and_the_class_decides(rule, folder):
    settings = SETTINGS if rule not in ("AdaGrad", "RMSProp") else SETTINGS.replace("momentum: 0.9", "")
    extra = "rms_decay: 0.9" if rule == "RMSProp" else "delta: 1e-6" if rule == "AdaDelta" else ""
    write(folder, f"net: 'net.prototxt' type: '{rule}' {settings} {extra}", "by_file.prototxt")
    write(folder, f"net: 'net.prototxt' {settings} {extra}", "by_class.prototxt")
    by_file = caffe.get_solver("by_file.prototxt")
    by_class = getattr(caffe, f"{rule}Solver")("by_class.prototxt")
    assert type(by_file) is type(by_class)
    assert isinstance(by_class, caffe.Solver)
    for solver in (by_file, by_class):
        solver.step(2)
    assert equal_params(by_file.net, by_class.net)


def test_a_class_against_its_file_says_so(folder):
    write(folder, f"net: 'net.prototxt' type: 'Adam' {SETTINGS}", "adam.prototxt")
    with pytest.warns(UserWarning, match="asks for type 'Adam', SGDSolver uses 'SGD'"):
        solver = caffe.SGDSolver("adam.prototxt")
    plain = caffe.SGDSolver("solver.prototxt")
    solver.step(1)
    plain.step(1)
    assert equal_params(solver.net, plain.net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        caffe.get_solver("adam.prototxt")


def test_a_solver_from_a_message(folder):
    param = caffe.proto.caffe_pb2.SolverParameter(net="net.prototxt", base_lr=0.1, lr_policy="fixed", max_iter=5)
    solver = caffe.get_solver(param)
    solver.solve()
    assert (solver.iter, solver.param.max_iter) == (5, 5)
    assert solver.lr == pytest.approx(0.1)


def test_what_a_missing_file_says():
    with pytest.raises(RuntimeError, match="Could not open file nowhere"):
        caffe.SGDSolver("nowhere.prototxt")
    assert caffe.get_solver_from_file("solver.prototxt").iter == 0


def test_iter_size_and_multistep(folder):
    write(
        folder,
        "net: 'net.prototxt' base_lr: 1 lr_policy: 'multistep' gamma: 0.5 stepvalue: 2 stepvalue: 3 iter_size: 3",
        "multi.prototxt",
    )
    solver = caffe.get_solver("multi.prototxt")
    rates = []
    for _ in range(4):
        rates.append(solver.lr)
        solver.step(1)
    assert rates == [1, 1, 0.5, 0.25]


def test_two_solvers_in_one_process(solver):
    other = caffe.SGDSolver("solver.prototxt")
    solver.step(2)
    assert (solver.iter, other.iter) == (2, 0)
    assert not equal_params(solver.net, other.net)
    other.net.copy_from(_saved(solver.net))
    assert equal_params(solver.net, other.net)


def _saved(net) -> str:
    net.save("some.caffemodel")
    return "some.caffemodel"


def test_labels_out_of_reach_are_no_problem_of_ours(solver):
    assert solver.net.blobs["label"].data.max() < NUM_CLASSES
