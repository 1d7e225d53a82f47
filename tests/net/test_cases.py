"""Every registered layer, tested by being registered: each needs a case file under tests/net/cases.

For each case: the shapes promised by `reshape` are those `forward` gives; float64 finite differences agree with
autograd through the whole graph; the fused pass and the layer-by-layer pass agree in values and in gradients.
"""

from __future__ import annotations

import shutil

import pytest
import torch

from poseidon.net.registry import layer_types
from poseidon.net.stepwise import Stepwise
from tests.net.harness import CASES, Case

FILES = sorted(CASES.glob("*.prototxt"))
NAMES = [path.stem for path in FILES]


def test_every_layer_has_a_case():
    covered = {name.split("__")[0] for name in NAMES}
    assert sorted(set(layer_types()) - covered) == []


@pytest.fixture(params=FILES, ids=NAMES)
def case(request, monkeypatch, tmp_path):
    """A case, in a folder of its own with the files that case nets refer to."""
    for companion in CASES.iterdir():
        if companion.is_file() and companion.suffix != ".prototxt":
            shutil.copy(companion, tmp_path)
    monkeypatch.chdir(tmp_path)
    return Case.read(request.param)


def test_forward_keeps_the_promise_of_reshape(case):
    net = case.net(torch.float32)
    outputs = net(case.inputs(net), keep=list(net.blob_shapes))
    for name, shape in net.blob_shapes.items():
        assert tuple(outputs[name].shape) == shape, name
        assert outputs[name].dtype == torch.float32, name


def test_finite_differences(case):
    if case.nogradcheck:
        net = case.net()
        assert not any(p.requires_grad for p in net.parameters()), "a layer with parameters to learn has a derivative"
        return
    net = case.net()
    inputs = case.inputs(net)
    with torch.no_grad():
        for parameter in net.parameters():  # zero-filled parameters would hide a wrong gradient
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
                parameter.add_(noise * 0.3)
    wanted = [name for name in inputs if name not in case.nograd]
    for name in wanted:
        inputs[name].requires_grad_()
    params = [p for p in net.parameters() if p.requires_grad]
    statistics = {p: p.detach().clone() for p in net.parameters() if not p.requires_grad}

    def function(*varied):
        with torch.no_grad():
            for parameter, value in statistics.items():
                parameter.copy_(value)
        for layer in net.layers.values():
            getattr(layer, "reset_state", lambda: None)()
        net.draws.clock = 0
        outputs = net({**inputs, **dict(zip(wanted, varied[: len(wanted)], strict=True))})
        return tuple(value for value in outputs.values() if value.requires_grad)

    assert torch.autograd.gradcheck(function, (*[inputs[name] for name in wanted], *params), atol=1e-6, rtol=1e-4)


def test_fused_and_stepwise_agree(case):
    fused, stepwise = case.net(), case.net()
    inputs = case.inputs(fused)
    run = Stepwise(stepwise)
    for name, value in inputs.items():
        run.blobs[name].data = value.clone()
        if name not in case.nograd:
            inputs[name] = value.clone().requires_grad_()
    outputs = fused(inputs)
    run.forward()
    for name, value in outputs.items():
        torch.testing.assert_close(run.blobs[name].data, value.detach(), msg=lambda m, name=name: f"{name}: {m}")
    if case.nogradcheck:
        return
    seeds = {name: torch.cos(value.detach() + 1) for name, value in outputs.items() if value.requires_grad}
    torch.autograd.backward([outputs[name] for name in seeds], list(seeds.values()))
    for name, seed in seeds.items():
        run.blobs[name].diff = seed.clone()
    run.backward()
    for name, node_input in inputs.items():
        if node_input.grad is not None and run.blobs[name].diff.abs().sum() > 0:
            torch.testing.assert_close(run.blobs[name].diff, node_input.grad)
    for (_, mine), (_, other) in zip(fused.named_parameters(), stepwise.named_parameters(), strict=True):
        if mine.grad is not None:
            torch.testing.assert_close(other.grad, mine.grad)
