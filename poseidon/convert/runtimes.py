"""The other side of a comparison: what was exported, run without Poseidon.

ONNX runs in onnxruntime. A PyTorch model runs in a process of its own, which has nothing but its folder and the
installed packages: that it needs no Poseidon is part of the check.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from poseidon.errors import ConvertError

# Runs an exported model on arrays; every word of it is executed by `python -I`.
_RUN_TORCH = """
import runpy, sys
import numpy as np, torch
model_path, inputs_path, outputs_path = sys.argv[1:]
torch.set_num_threads(1)
model = runpy.run_path(model_path)["load"]()
given = np.load(inputs_path, allow_pickle=False)
num_trials, num_inputs = given["counts"].tolist()
results = {}
for trial in range(num_trials):
    with torch.no_grad():
        made = model(*[torch.from_numpy(given[f"{trial}/{i}"]) for i in range(num_inputs)])
    for i, value in enumerate(made if isinstance(made, tuple) else (made,)):
        results[f"{trial}/{i}"] = value.numpy()
assert not any(name.split(".")[0] in ("poseidon", "caffe") for name in sys.modules), "needs Poseidon"
np.savez(outputs_path, **results)
"""

# One set of inputs for each run, by blob, in the net's order.
Trials = Sequence[Mapping[str, Tensor]]
Results = list[dict[str, np.ndarray]]


# `outputs`: the net's blobs and what they are called outside, as `steps.outputs_of` gives them.


def run_onnx(path: Path, trials: Trials, outputs: Mapping[str, str]) -> Results:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    results = []
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for inputs in trials:
            made = session.run(list(outputs.values()), {name: value.numpy() for name, value in inputs.items()})
            results.append(dict(zip(outputs, made, strict=True)))
    except Exception as problem:  # onnxruntime's have no base of their own
        raise ConvertError(f"{path}: onnxruntime cannot run it: {problem}") from problem
    return results


def run_torch(path: Path, trials: Trials, outputs: Mapping[str, str]) -> Results:
    """`path`: of model.py; its weights lie beside it."""
    arrays = {f"{trial}/{i}": v.numpy() for trial, inputs in enumerate(trials) for i, v in enumerate(inputs.values())}
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        arrays["counts"] = np.array([len(trials), len(trials[0])])
        np.savez(given, allow_pickle=False, **arrays)
        command = [sys.executable, "-I", "-c", _RUN_TORCH, str(path.resolve()), str(given), str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ConvertError(f"{path}: does not run by itself: {reason}")
        results = np.load(made, allow_pickle=False)
        return [{name: results[f"{trial}/{i}"] for i, name in enumerate(outputs)} for trial in range(len(trials))]


def run_torchscript(path: Path, trials: Trials, outputs: Mapping[str, str]) -> Results:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.jit.load(str(path))
    results = []
    for inputs in trials:
        with torch.no_grad():
            made = module(*inputs.values())
        made = made if isinstance(made, tuple) else (made,)
        results.append({name: value.numpy() for name, value in zip(outputs, made, strict=True)})
    return results
