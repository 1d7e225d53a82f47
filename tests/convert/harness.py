"""What the tests of conversions share: nets exported and run by others, without files where that is enough."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from poseidon.convert.extents import Extents
from poseidon.convert.steps import outputs_of
from poseidon.convert.to_onnx.model import model_of as onnx_model
from poseidon.convert.to_torch.model import model_of as torch_model
from poseidon.net import Net

TOLERANCE = 1e-4


def onnx_session(net: Net, extents: Extents, opset: int = 17):
    """onnxruntime on the exported model, which onnx's checker has passed."""
    import onnx
    import onnxruntime

    data = onnx_model(net, extents, opset).SerializeToString()
    onnx.checker.check_model(data, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run_as_onnx(net: Net, extents: Extents, trials: list[dict], opset: int = 17) -> list[dict[str, np.ndarray]]:
    session, outputs = onnx_session(net, extents, opset), outputs_of(net)
    results = []
    for inputs in trials:
        made = session.run(list(outputs.values()), {name: value.numpy() for name, value in inputs.items()})
        results.append(dict(zip(outputs, made, strict=True)))
    return results


def torch_module(net: Net, extents: Extents) -> torch.nn.Module:
    """The exported text, executed."""
    model = torch_model(net, extents)
    assert "poseidon" not in model.text.replace("`poseidon export`", "")
    names: dict[str, object] = {"__name__": "exported", "__file__": "model.py"}
    exec(compile(model.text, "model.py", "exec"), names)
    classes = [value for value in names.values() if isinstance(value, type) and value.__module__ == "exported"]
    module = classes[-1]()
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in model.tensors.items()})
    return module.eval()


def run_as_torch(net: Net, extents: Extents, trials: list[dict]) -> list[dict[str, np.ndarray]]:
    module, outputs = torch_module(net, extents), outputs_of(net)
    results = []
    for inputs in trials:
        with torch.no_grad():
            made = module(*[inputs[name] for name in net.inputs])
        made = made if isinstance(made, tuple) else (made,)
        results.append({name: value.numpy() for name, value in zip(outputs, made, strict=True)})
    return results


def close(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> None:
    """Every output within the tolerance, relative to its largest value."""
    assert set(got) == set(want)
    for name, value in want.items():
        assert got[name].shape == value.shape, name
        finite = value[np.isfinite(value)]
        scale = float(np.abs(finite).max(initial=0.0)) or 1.0
        np.testing.assert_allclose(got[name], value, rtol=0, atol=TOLERANCE * scale, err_msg=name)


def perturb(net: Net, seed: int = 11) -> None:
    """Moves parameters off their constant fillers: zeros and ones hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for entry in net.learnable:
            noise = torch.randn(entry.value.shape, generator=generator)
            if entry.value.requires_grad:
                entry.value.add_(noise * 0.3)
            else:
                entry.value.copy_(noise.abs() + 0.5)


def companions(source: Path, target: Path) -> None:
    """Copies the files that nets in a folder refer to."""
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".prototxt":
            (target / path.name).write_bytes(path.read_bytes())
