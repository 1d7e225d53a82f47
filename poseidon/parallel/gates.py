"""Gates: where a forward pass is about to read parameters.

One gate per module that holds or reads parameters, passed just before the module runs. A copy of the module (deepcopy,
pickle) has no gates: `open_gate` takes their place there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn


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


def _opened() -> Callable[[nn.Module, tuple[Any, ...]], None]:
    return open_gate


def set_gates(readers: Mapping[str, nn.Module], on_enter: Callable[[str], None]) -> list[Any]:
    """Puts a gate before each module; the handles take them away again."""
    return [module.register_forward_pre_hook(Gate(name, on_enter), prepend=True) for name, module in readers.items()]
