"""Every layer and net record from BVLC Caffe, run layer by layer and as one graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poseidon.net.net import Net
from poseidon.net.stepwise import Stepwise
from tests.net.harness import BACKWARD, FORWARD, GOLDEN, close, keys_under, param_of, put, run_golden_layer

LAYERS = sorted(path.stem for path in (GOLDEN / "layers").glob("*.npz"))
NETS = sorted(path.name for path in (GOLDEN / "nets").iterdir())


@pytest.mark.parametrize("name", LAYERS)
def test_layer_record(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_golden_layer(np.load(GOLDEN / "layers" / f"{name}.npz"), tmp_path)


@pytest.mark.parametrize("name", NETS)
def test_net_train_stepwise(name):
    folder = GOLDEN / "nets" / name
    record = np.load(folder / "record.npz")
    run = Stepwise(Net(folder / "net.prototxt", folder / "init.caffemodel", phase="TRAIN"))
    for key in keys_under(record, "input/"):
        put(run.blobs[key[6:]].data, record[key])
    for _ in range(int(record["forwards"])):
        run.forward()
    for key in keys_under(record, "blob/"):
        close(run.blobs[key[5:]].data, record[key], key, **FORWARD)
    run.backward()
    for key in keys_under(record, "param_diff/"):
        parameter = param_of(run.net, key)
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        close(grad, record[key], key, **BACKWARD)
    for key in keys_under(record, "param_after/"):
        close(param_of(run.net, key), record[key], key, **FORWARD)
    for key in keys_under(record, "input_diff/"):
        close(run.blobs[key[11:]].diff, record[key], key, **BACKWARD)


@pytest.mark.parametrize("name", NETS)
def test_net_train_as_one_graph(name):
    folder = GOLDEN / "nets" / name
    record = np.load(folder / "record.npz")
    net = Net(folder / "net.prototxt", folder / "init.caffemodel", phase="TRAIN")
    inputs = {key[6:]: torch.from_numpy(record[key]).requires_grad_() for key in keys_under(record, "input/")}
    for _ in range(int(record["forwards"])):
        outputs = net(inputs)
    assert outputs.loss is not None
    np.testing.assert_allclose(outputs.loss.item(), float(record["loss"]), **FORWARD)
    outputs.loss.backward()
    for key in keys_under(record, "param_diff/"):
        parameter = param_of(net, key)
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        close(grad, record[key], key, **BACKWARD)
    for key in keys_under(record, "input_diff/"):
        grad = inputs[key[11:]].grad
        assert grad is not None
        close(grad, record[key], key, **BACKWARD)


@pytest.mark.parametrize("name", NETS)
def test_net_test_phase_and_resized(name):
    folder = GOLDEN / "nets" / name
    record = np.load(folder / "record.npz")
    net = Net(folder / "net.prototxt", folder / "init.caffemodel", phase="TEST")
    wanted = [key[10:] for key in keys_under(record, "test/blob/")]
    outputs = net({key[6:]: torch.from_numpy(record[key]) for key in keys_under(record, "input/")}, keep=wanted)
    for blob in wanted:
        close(outputs[blob], record["test/blob/" + blob], blob, **FORWARD)
    resized = [key[13:] for key in keys_under(record, "resized/blob/")]
    if resized:
        net = Net(folder / "net.prototxt", folder / "init.caffemodel", phase="TEST")
        inputs = {key[14:]: torch.from_numpy(record[key]) for key in keys_under(record, "resized/input/")}
        outputs = net(inputs, keep=resized)
        for blob in resized:
            close(outputs[blob], record["resized/blob/" + blob], blob, **FORWARD)
