"""What has to go on as if never interrupted, and Caffe's files do not hold: per net

    seed, clock     of its random draws
    position        of every layer that reads data (`layer.position()`, `layer.seek(position)`)
    carried         tensors that a layer takes over into its next pass (`layer.carried()`, `layer.carry(tensors)`)

All of it as values that JSON can hold; tensors as their bytes.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from poseidon.errors import SnapshotError
from poseidon.net.net import Net

_DTYPES = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}


@runtime_checkable
class Positioned(Protocol):
    """A layer that reads records one after the other. Its position counts what was handed out, not what was fetched
    in advance, and is a value that JSON can hold."""

    def position(self) -> Any: ...

    def seek(self, position: Any) -> None: ...


@runtime_checkable
class Carrying(Protocol):
    """A layer whose next pass begins with what the last one left."""

    def carried(self) -> list[Tensor]: ...

    def carry(self, tensors: list[Tensor]) -> None: ...


class Stateful(Protocol):
    """Anything else whose state belongs into snapshots; see `Solver.stateful`."""

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None: ...


def net_state(net: Net) -> dict[str, Any]:
    """Where a net stands."""
    return {
        "seed": net.draws.seed,
        "clock": net.draws.clock,
        "positions": {name: layer.position() for name, layer in net.layers.items() if isinstance(layer, Positioned)},
        "carried": carried_state(net),
    }


def carried_state(net: Net) -> dict[str, Any]:
    """What the next pass begins with, by layer."""
    return {
        name: [encoded(tensor) for tensor in layer.carried()]
        for name, layer in net.layers.items()
        if isinstance(layer, Carrying)
    }


def restore_net(net: Net, state: Mapping[str, Any]) -> None:
    """Puts a net where it stood."""
    net.draws.seed, net.draws.clock = int(state["seed"]), int(state["clock"])
    for name, layer in net.layers.items():
        if isinstance(layer, Positioned) and name in state["positions"]:
            layer.seek(state["positions"][name])
    restore_carried(net, state["carried"])


def restore_carried(net: Net, carried: Mapping[str, Any]) -> None:
    """Lets the next pass begin with this; layers that are not named begin as they would."""
    for name, layer in net.layers.items():
        if isinstance(layer, Carrying) and name in carried:
            layer.carry([decoded(entry, f"layer {name!r}").to(net.device) for entry in carried[name]])


def encoded(tensor: Tensor) -> dict[str, Any]:
    """A tensor as a value that JSON can hold."""
    kind = str(tensor.dtype).removeprefix("torch.")
    wide = kind if kind in _DTYPES else "float32"  # bfloat16 has no NumPy type; float32 holds it exactly
    array = tensor.detach().to("cpu", getattr(torch, wide)).contiguous().numpy().astype(_DTYPES[wide])
    data = base64.b64encode(array.tobytes()).decode()
    return {"dtype": kind, "shape": list(tensor.shape), "stored": wide, "bytes": data}


def decoded(entry: Mapping[str, Any], what: str) -> Tensor:
    """The tensor again; `what` it is of stands in errors."""
    data = base64.b64decode(entry["bytes"])
    dtype = np.dtype(_DTYPES[entry["stored"]])
    if len(data) != math.prod(entry["shape"]) * dtype.itemsize:
        raise SnapshotError(f"{what}: found {len(data)} bytes of state, expected shape {entry['shape']}")
    array = np.frombuffer(data, dtype).astype(dtype.newbyteorder("=")).reshape(entry["shape"])
    return torch.from_numpy(array).to(getattr(torch, entry["dtype"]))
