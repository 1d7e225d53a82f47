"""Fillers: the values a parameter starts from.

For a blob of shape (n, c, …) with `count` elements:  fan_in = count / n,  fan_out = count / c  (count for one axis).
`variance_norm` picks f = fan_in, fan_out or their mean.

    constant            value
    uniform             U[min, max)
    gaussian            N(mean, std²); with sparse ≥ 0 each weight is kept with probability sparse / n
    positive_unitball   U[0, 1), rows (everything but the first axis) scaled to sum to 1
    xavier              U[-a, a],  a = √(3 / f)
    msra                N(0, 2 / f)
    bilinear            the interpolation kernel of a Deconvolution, for 4-D square kernels

`fill` raises ValueError; the layer turns it into an error with its own name and line.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from poseidon.spec import caffe_pb2

Filler = caffe_pb2.FillerParameter


def fan(shape: tuple[int, ...], mode: int) -> float:
    """Number of connections that `variance_norm` divides by."""
    count = math.prod(shape)
    fan_in = count / shape[0] if shape else 1.0
    fan_out = count / shape[1] if len(shape) > 1 else float(count)
    if mode == Filler.FAN_OUT:
        return fan_out
    return (fan_in + fan_out) / 2 if mode == Filler.AVERAGE else fan_in


def _constant(value: Tensor, options: Filler, generator: torch.Generator) -> None:
    value.fill_(options.value)


def _uniform(value: Tensor, options: Filler, generator: torch.Generator) -> None:
    if not 0 <= options.max - options.min <= torch.finfo(value.dtype).max:
        raise ValueError(f"uniform filler needs numbers min <= max, got min {options.min:g} and max {options.max:g}")
    value.uniform_(options.min, options.max, generator=generator)


def _gaussian(value: Tensor, options: Filler, generator: torch.Generator) -> None:
    if not options.std >= 0:
        raise ValueError(f"gaussian filler needs std >= 0, got {options.std:g}")
    value.normal_(options.mean, options.std, generator=generator)
    if options.sparse >= 0:
        if value.dim() < 1 or options.sparse > value.shape[0]:
            raise ValueError(
                f"gaussian filler keeps `sparse` of the blob's first axis, got sparse {options.sparse} "
                f"for shape {tuple(value.shape)}"
            )
        keep = torch.empty_like(value).bernoulli_(options.sparse / value.shape[0], generator=generator)
        value.mul_(keep)


def _positive_unitball(value: Tensor, options: Filler, generator: torch.Generator) -> None:
    value.uniform_(0, 1, generator=generator)
    rows = value.view(value.shape[0], -1)
    rows.div_(rows.sum(1, keepdim=True))


def _xavier(value: Tensor, options: Filler, generator: torch.Generator) -> None:
    bound = math.sqrt(3.0 / fan(tuple(value.shape), options.variance_norm))
    value.uniform_(-bound, bound, generator=generator)


def _msra(value: Tensor, options: Filler, generator: torch.Generator) -> None:
    value.normal_(0.0, math.sqrt(2.0 / fan(tuple(value.shape), options.variance_norm)), generator=generator)


def _bilinear(value: Tensor, options: Filler, generator: torch.Generator) -> None:
    if value.dim() != 4 or value.shape[2] != value.shape[3]:
        raise ValueError(f"bilinear filler needs a 4-D blob with a square kernel, got shape {tuple(value.shape)}")
    size = value.shape[3]
    factor = math.ceil(size / 2)
    centre = (2 * factor - 1 - factor % 2) / (2.0 * factor)
    ramp = 1 - (torch.arange(size, dtype=torch.float64) / factor - centre).abs()
    value.copy_(ramp[:, None] * ramp[None, :])


_FILLERS: dict[str, Callable[[Tensor, Filler, torch.Generator], None]] = {
    "constant": _constant,
    "uniform": _uniform,
    "gaussian": _gaussian,
    "positive_unitball": _positive_unitball,
    "xavier": _xavier,
    "msra": _msra,
    "bilinear": _bilinear,
}


def fill(value: Tensor, options: Filler, generator: torch.Generator) -> None:
    """Fills `value` in place as the FillerParameter says."""
    filler = _FILLERS.get(options.type)
    if filler is None:
        raise ValueError(f"unknown filler type {options.type!r} (known types: {', '.join(_FILLERS)})")
    if options.sparse != -1 and options.type != "gaussian":
        raise ValueError(f"`sparse` works with the gaussian filler only, got type {options.type!r}")
    if value.numel():
        with torch.no_grad():
            filler(value, options, generator)
