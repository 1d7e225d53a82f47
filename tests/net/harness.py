"""What the net tests share: golden records run layer by layer, and case files with directives for their inputs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from poseidon.net.net import Net
from poseidon.net.stepwise import Stepwise
from poseidon.spec import parse_net

TESTS = Path(__file__).resolve().parent.parent
GOLDEN = TESTS / "golden"
CASES = Path(__file__).resolve().parent / "cases"

FORWARD = {"rtol": 1e-4, "atol": 1e-5}
BACKWARD = {"rtol": 1e-3, "atol": 1e-4}


def close(got: torch.Tensor, want: np.ndarray, what: str, rtol: float, atol: float) -> None:
    """Element-wise |got - want| <= atol + rtol * |want|, and equal shapes."""
    got_array = got.detach().double().numpy()
    assert got_array.shape == want.shape, f"{what}: shape {got_array.shape}, expected {want.shape}"
    np.testing.assert_allclose(got_array, want.astype("f8"), rtol=rtol, atol=atol, err_msg=what)


def keys_under(record, prefix: str) -> list[str]:
    return [key for key in record.files if key.startswith(prefix)]


def put(target: torch.Tensor, value: np.ndarray) -> None:
    assert tuple(target.shape) == value.shape, f"shape {tuple(target.shape)}, expected {value.shape}"
    with torch.no_grad():
        target.copy_(torch.from_numpy(value.copy()))


@dataclass
class Case:
    """A net text with comments that say how to fill its inputs:

    # fill NAME: normal | positive | uniform LO HI | ints N | distinct | bits
    # nograd NAME          its gradient is not checked
    # nogradcheck WHY      the net has no derivative to check
    # phase TEST
    """

    text: str
    fills: dict[str, list[str]] = field(default_factory=dict)
    nograd: set[str] = field(default_factory=set)
    nogradcheck: bool = False
    phase: str = "TRAIN"

    @classmethod
    def read(cls, path: Path) -> Case:
        case = cls(path.read_text())
        for line in case.text.splitlines():
            directive = re.match(r"#\s*(fill|nograd|nogradcheck|phase)\b\s*(.*)", line)
            if not directive:
                continue
            word, rest = directive.groups()
            if word == "fill":
                name, _, how = rest.partition(":")
                case.fills[name.strip()] = how.split()
            elif word == "nograd":
                case.nograd.add(rest.strip())
            elif word == "nogradcheck":
                case.nogradcheck = True
            else:
                case.phase = rest.strip()
        return case

    def net(self, dtype: torch.dtype = torch.float64, **options) -> Net:
        net = Net(parse_net(self.text), phase=self.phase, seed=7, dtype=dtype, **options)
        for layer in net.layers.values():
            if layer.type_name == "MemoryData":
                shape, label_shape = layer.reshape([])
                generator = torch.Generator().manual_seed(13)
                layer.reset(filled(shape, ["normal"], generator), filled(label_shape, ["ints", "3"], generator))
        return net

    def inputs(self, net: Net) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(11)
        return {
            name: filled(net.blob_shapes[name], self.fills.get(name, ["normal"]), generator).to(net.dtype)
            for name in net.inputs
        }


def filled(shape: tuple[int, ...], how: list[str], generator: torch.Generator) -> torch.Tensor:
    kind, numbers = how[0], [float(word) for word in how[1:]]
    if kind == "normal":
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "positive":
        return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
    if kind == "uniform":
        low, high = numbers
        return torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
    if kind == "ints":
        return torch.randint(0, int(numbers[0]), shape, generator=generator).double()
    if kind == "bits":
        return torch.randint(0, 2, shape, generator=generator).double()
    if kind == "distinct":
        count = int(np.prod(shape)) if shape else 1
        order = torch.randperm(count, generator=generator).double()
        return ((order - count / 2 + 0.25) * 0.1).reshape(shape)
    raise ValueError(f"unknown fill {how}")


def run_golden_layer(record, folder: Path) -> None:
    """One record of tests/golden/layers, in the current folder: forward, parameters, backward."""
    for key in keys_under(record, "file/"):
        target = folder / key[5:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(record[key].tobytes())
    net = Net(parse_net(str(record["prototxt"])), phase=str(record["phase"]), seed=3)
    run = Stepwise(net)
    for key in keys_under(record, "reshape/"):
        run.blobs[key[8:]].reshape(tuple(int(n) for n in record[key]))
    for key in keys_under(record, "param_init/"):
        close(param_of(net, key), record[key], key, **FORWARD)
    for key in keys_under(record, "param/"):
        put(param_of(net, key).data, record[key])
    if "memory/data" in record.files:
        layer = next(layer for layer in net.layers.values() if layer.type_name == "MemoryData")
        layer.reset(torch.from_numpy(record["memory/data"]), torch.from_numpy(record["memory/labels"]))
    kind = str(record["kind"])
    if kind == "filler":
        for key in keys_under(record, "filler/"):
            if key.endswith("/stats"):
                check_statistics(param_of(net, key[: -len("/stats")]), record[key])
        return
    check_forward(record, run)
    if kind == "random_top":
        for key in keys_under(record, "top_shape/"):
            assert run.blobs[key[10:]].shape == tuple(record[key])
            check_statistics(run.blobs[key[10:]].data, record[f"filler/top/{key[10:]}/stats"])
        return
    if kind == "dropout":
        check_dropout(record, run)
        return
    for key in keys_under(record, "param_after/"):
        close(param_of(net, key), record[key], key, **FORWARD)
    if int(record["n_backward"]):
        check_backward(record, run)


def param_of(net: Net, key: str) -> torch.nn.Parameter:
    _, layer, index = key.split("/")
    return net.params[layer][int(index)]


def check_forward(record, run: Stepwise) -> None:
    passes = int(record["n_forward"])
    tolerance = {"rtol": 1e-4, "atol": float(record["atol"])} if "atol" in record.files else FORWARD
    for number in range(passes):
        prefix = f"seq/{number}/" if passes > 1 else ""
        for key in keys_under(record, prefix + "bottom/"):
            put(run.blobs[key[len(prefix) + 7 :]].data, record[key])
        loss = run.forward()
        if str(record["kind"]) == "layer":
            for key in keys_under(record, prefix + "top/"):
                close(run.blobs[key[len(prefix) + 4 :]].data, record[key], key, **tolerance)
        if keys_under(record, "loss_weight/"):
            np.testing.assert_allclose(loss, float(record[prefix + "loss"]), **FORWARD)


def check_backward(record, run: Stepwise) -> None:
    for key in keys_under(record, "top_diff/"):
        put(run.blobs[key[9:]].diff, record[key])
    for _ in range(int(record["n_backward"])):
        run.backward()
    for key in keys_under(record, "bottom_diff/"):
        close(run.blobs[key[12:]].diff, record[key], key, **BACKWARD)
    for key in keys_under(record, "param_diff/"):
        parameter = param_of(run.net, key)
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        layer, index = key.split("/")[1:]
        shape = run.net.layers[layer].param_shapes[int(index)]
        close(grad.view(shape), record[key], key, **BACKWARD)


def check_statistics(value: torch.Tensor, stats: np.ndarray) -> None:
    """Random values against the moments of Caffe's: mean, spread, range, share of non-zeros, sums of rows."""
    array = value.detach().double().numpy()
    mean, spread, low, high, nonzero, row_mean, row_spread = (float(number) for number in stats)
    if spread < 1e-7:
        np.testing.assert_allclose([array.min(), array.max()], [low, high], **FORWARD)
        return
    assert abs(array.mean() - mean) < 0.06 * spread
    assert abs(array.std() - spread) < (0.04 if nonzero > 0.99 else 0.12) * spread
    assert abs((array != 0).mean() - nonzero) < 0.03
    if (high - low) / spread < 3.7:  # uniform values reach their bounds; a normal's extremes are random
        tolerance = (0.25 if row_spread < 1e-4 * abs(row_mean) else 0.01) * (high - low)
        assert abs(array.min() - low) < tolerance
        assert abs(array.max() - high) < tolerance
    if row_spread < 1e-4 * abs(row_mean):
        np.testing.assert_allclose(array.reshape(len(array), -1).sum(1), row_mean, rtol=1e-3)


def check_dropout(record, run: Stepwise) -> None:
    """Kept values are scaled up, the mask serves backward too, and the next forward draws another."""
    ratio = float(record["dropout_ratio"])
    x, y = record["bottom/x"], run.blobs["y"].data.clone().numpy()
    kept = y != 0
    assert abs(kept.mean() - (1 - ratio)) < 5 * np.sqrt(ratio * (1 - ratio) / y.size) + 1e-3
    np.testing.assert_allclose(y, np.where(kept, x / (1 - ratio), 0), **FORWARD)
    put(run.blobs["y"].diff, record["top_diff/y"])
    run.backward()
    close(run.blobs["x"].diff, np.where(kept, record["top_diff/y"] / (1 - ratio), 0), "x diff", **BACKWARD)
    run.forward()
    assert not np.array_equal(run.blobs["y"].data.numpy() != 0, kept)
