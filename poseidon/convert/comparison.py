"""Two ways to compute the same outputs, held against each other.

    relative difference of an output = max |theirs − ours| / max |ours|

Both may have the same NaN and infinities in the same places; one that only one side has counts as infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from poseidon.errors import ConvertError
from poseidon.net import Net

TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Difference:
    output: str
    shape: tuple[int, ...]
    absolute: float
    relative: float

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.shape)) or "one number"
        return f"{self.output} ({shape}): largest difference {self.absolute:.2e}, relative {self.relative:.2e}"


def run_net(net: Net, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, np.ndarray]:
    """One pass from a clean state: recurrent layers begin at zero."""
    for layer in net.layers.values():
        getattr(layer, "reset_state", lambda: None)()
    with torch.no_grad():
        made = net(dict(inputs), keep=list(outputs))
    return {name: made[name].float().numpy() for name in outputs}


def compare(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> list[Difference]:
    return [_difference(name, ours[name], np.asarray(theirs[name])) for name in ours]


def largest(differences: Sequence[Difference]) -> float:
    return max((difference.relative for difference in differences), default=0.0)


def _difference(name: str, ours: np.ndarray, theirs: np.ndarray) -> Difference:
    if ours.shape != theirs.shape:
        raise ConvertError(f"output {name!r} has shape {ours.shape} here and {theirs.shape} there")
    mine, other = ours.astype(np.float64), theirs.astype(np.float64)
    plain = np.isfinite(mine) & np.isfinite(other)
    with np.errstate(invalid="ignore"):
        same = plain | (mine == other) | (np.isnan(mine) & np.isnan(other))
    if not same.all():
        return Difference(name, ours.shape, float("inf"), float("inf"))
    gaps = np.subtract(mine, other, where=plain, out=np.zeros_like(mine))
    absolute = float(np.abs(gaps).max(initial=0.0))
    scale = float(np.abs(mine).max(initial=0.0, where=plain))
    return Difference(name, ours.shape, absolute, absolute / scale if scale else absolute)
