"""A second, slow reading of the zoo's prototxt, written from Caffe's rules alone: the oracle of the tests beside it.

`parse` turns prototxt into nested dicts of lists; `Reading` runs such a net, creating the learnable parameters it meets
in Caffe's order. Inputs on torch's meta device give the shapes alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

TOKEN = re.compile(r'#[^\n]*|"([^"]*)"|([{}:])|([^\s{}:"#]+)')

Message = dict[str, list[Any]]


def parse(text: str) -> Message:
    tokens = [match for match in TOKEN.finditer(text) if not match.group().startswith("#")]
    message, rest = _parse_fields(tokens, 0)
    assert rest == len(tokens), "unbalanced braces"
    return message


def _parse_fields(tokens: list[re.Match[str]], at: int) -> tuple[Message, int]:
    message: Message = {}
    while at < len(tokens) and tokens[at].group() != "}":
        name, after = tokens[at].group(), tokens[at + 1].group()
        if after == "{":
            value, at = _parse_fields(tokens, at + 2)
            at += 1
        else:
            assert after == ":", f"expected ':' after {name}, got {after}"
            token = tokens[at + 2]
            value = token.group(1) if token.group(1) is not None else _number_or_word(token.group())
            at += 3
        message.setdefault(name, []).append(value)
    return message, at


def _number_or_word(text: str) -> object:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return {"true": True, "false": False}.get(text, text)


def one(message: Message, name: str, default: Any = None) -> Any:
    """The value of a field that occurs at most once."""
    values = message.get(name, [default])
    assert len(values) == 1, f"{name} occurs {len(values)} times"
    return values[0]


class Reading:
    """Runs a net's layers of one phase over given inputs. Dropout is taken as off. `given`: parameters to take in place
    of new ones."""

    def __init__(self, net: Message, phase: str, given: Sequence[Tensor] = ()) -> None:
        self.given = list(given)
        self.layers = [entry for entry in net["layer"] if one(one(entry, "include", {}), "phase", phase) == phase]
        self.params: list[Tensor] = []
        self.num_statistics = 0
        self.blobs: dict[str, Tensor] = {}
        self.loss: Tensor | None = None

    def run(self, inputs: dict[str, Tensor]) -> None:
        # Weights are kept small enough for deep nets to stay finite, and the same for every run.
        self.random = torch.Generator().manual_seed(3)
        self.device = inputs["data"].device
        self.blobs.update(inputs)
        for entry in self.layers:
            kind = one(entry, "type")
            if kind in ("Data", "Input"):
                assert set(entry["top"]) <= set(self.blobs), f"no input given for {entry['top']}"
                continue
            bottoms = [self.blobs[name] for name in entry["bottom"]]
            top = getattr(self, kind)(entry, *bottoms)
            self.blobs[one(entry, "top")] = top
            if kind == "SoftmaxWithLoss":
                weighted = top * one(entry, "loss_weight", 1)
                self.loss = weighted if self.loss is None else self.loss + weighted

    def new_param(self, *shape: int) -> Tensor:
        if self.given:
            self.params.append(self.given[len(self.params)])
            assert self.params[-1].shape == shape, f"expected {shape}, got {tuple(self.params[-1].shape)}"
            return self.params[-1]
        if self.device.type == "meta":
            values = torch.empty(shape, dtype=torch.float64, device="meta")
        else:
            scale = math.sqrt(2 / math.prod(shape[1:]))
            values = torch.randn(shape, generator=self.random, dtype=torch.float64) * scale
        self.params.append(values.requires_grad_())
        return values

    def Convolution(self, entry: Message, x: Tensor) -> Tensor:  # noqa: N802 - methods carry Caffe's type names
        settings = one(entry, "convolution_param")
        num_output, group = (one(settings, key, 1) for key in ("num_output", "group"))
        kernel = [one(settings, f"kernel_{side}", one(settings, "kernel_size")) for side in "hw"]
        pad = [one(settings, f"pad_{side}", one(settings, "pad", 0)) for side in "hw"]
        weight = self.new_param(num_output, x.shape[1] // group, *kernel)
        bias = self.new_param(num_output) if one(settings, "bias_term", True) else None
        return F.conv2d(x, weight, bias, one(settings, "stride", 1), pad, groups=group)

    def InnerProduct(self, entry: Message, x: Tensor) -> Tensor:  # noqa: N802
        rows = x.reshape(x.shape[0], -1)
        num_output = one(one(entry, "inner_product_param"), "num_output")
        weight = self.new_param(num_output, rows.shape[1])
        return rows @ weight.T + self.new_param(num_output)

    def Pooling(self, entry: Message, x: Tensor) -> Tensor:  # noqa: N802
        settings = one(entry, "pooling_param")
        size = x.shape[2]
        assert x.shape[2] == x.shape[3], "the zoo's images are square"
        kernel = size if one(settings, "global_pooling", False) else one(settings, "kernel_size")
        stride, pad = one(settings, "stride", 1), one(settings, "pad", 0)
        num_out = math.ceil((size + 2 * pad - kernel) / stride) + 1
        if pad and (num_out - 1) * stride >= size + pad:
            num_out -= 1
        starts = range(-pad, num_out * stride - pad, stride)
        after = max(starts[-1] + kernel - size, 0)
        is_max = one(settings, "pool") == "MAX"
        padded = F.pad(x, (pad, after, pad, after), value=-math.inf if is_max else 0.0)
        windows = padded.unfold(2, kernel, stride).unfold(3, kernel, stride)[:, :, :num_out, :num_out]
        if is_max:
            return windows.amax((4, 5))
        # An average divides by the window's extent, in which the padding counts but what hangs over beyond it does not.
        extent = torch.tensor([min(start + kernel, size + pad) - start for start in starts])
        return windows.sum((4, 5)) / (extent[:, None] * extent).to(x)

    def LRN(self, entry: Message, x: Tensor) -> Tensor:  # noqa: N802
        settings = one(entry, "lrn_param")
        size, alpha, beta = (one(settings, key) for key in ("local_size", "alpha", "beta"))
        half, channels = size // 2, x.shape[1]
        if one(settings, "norm_region", "ACROSS_CHANNELS") == "WITHIN_CHANNEL":
            around = F.pad(x.square(), (half, half, half, half)).unfold(2, size, 1).unfold(3, size, 1)
            return x * (1 + alpha * around.mean((4, 5))) ** -beta
        sums = [x[:, max(c - half, 0) : min(c + half + 1, channels)].square().sum(1) for c in range(channels)]
        return x * (1 + alpha / size * torch.stack(sums, 1)) ** -beta

    def BatchNorm(self, entry: Message, x: Tensor) -> Tensor:  # noqa: N802
        self.num_statistics += 2 * x.shape[1]
        mean = x.mean((0, 2, 3), keepdim=True)
        variance = (x - mean).square().mean((0, 2, 3), keepdim=True)
        return (x - mean) / (variance + one(one(entry, "batch_norm_param", {}), "eps", 1e-5)).sqrt()

    def Scale(self, entry: Message, x: Tensor) -> Tensor:  # noqa: N802
        assert one(one(entry, "scale_param"), "bias_term") is True
        factor, offset = self.new_param(x.shape[1]), self.new_param(x.shape[1])
        return x * factor[:, None, None] + offset[:, None, None]

    def ReLU(self, entry: Message, x: Tensor) -> Tensor:  # noqa: N802
        return x.clamp(min=0)

    def Dropout(self, entry: Message, x: Tensor) -> Tensor:  # noqa: N802
        return x

    def Concat(self, entry: Message, *parts: Tensor) -> Tensor:  # noqa: N802
        return torch.cat(parts, 1)

    def Eltwise(self, entry: Message, a: Tensor, b: Tensor) -> Tensor:  # noqa: N802
        assert one(one(entry, "eltwise_param"), "operation") == "SUM"
        return a + b

    def Softmax(self, entry: Message, scores: Tensor) -> Tensor:  # noqa: N802
        return scores.softmax(1)

    def SoftmaxWithLoss(self, entry: Message, scores: Tensor, labels: Tensor) -> Tensor:  # noqa: N802
        return -scores.log_softmax(1).gather(1, labels[:, None]).mean()

    def Accuracy(self, entry: Message, scores: Tensor, labels: Tensor) -> Tensor:  # noqa: N802
        top_k = one(one(entry, "accuracy_param", {}), "top_k", 1)
        return (scores.topk(top_k).indices == labels[:, None]).any(1).double().mean()
