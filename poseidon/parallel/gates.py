"""Gates: where a forward pass is about to read parameters.

One gate per module that holds or reads parameters, passed just before the module runs. A copy of the module (deepcopy,
pickle) has no gates: `open_gate` takes their place there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from poseidon.parallel.structure import Structure


def open_gate(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """What a copied gate does: nothing."""


class Gate:
    """Tells `on_enter` the name of the module that is about to run."""

    def __init__(self, name: str, on_enter: Callable[[str], None]) -> None:
        self._name, self._on_enter = name, on_enter

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._on_enter(self._name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return open_gate

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, ()


class ClosedGate(Gate):
    """Before a compiled module: where that was compiled in place, gates would be compiled along with it."""

    @torch.compiler.disable
    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        super().__call__(module, inputs)


def _opened() -> Callable[[nn.Module, tuple[Any, ...]], None]:
    return open_gate


def set_gates(structure: Structure, on_enter: Callable[[str], None]) -> list[Any]:
    """Puts a gate before each module that reads parameters; the handles take them away again."""
    handles = []
    for name, module in structure.readers.items():
        kind = ClosedGate if name in structure.atoms else Gate
        handles.append(module.register_forward_pre_hook(kind(name, on_enter), prepend=True))
    return handles
