"""Reading: which module's code reads which parameter, seen by watching one forward pass.

A parameter's holder is not always who reads it: nn.MultiheadAttention reads its projection's weight itself, a model may
multiply by an embedding's table. An exchange must be over before the first reader runs, and only a layer that is its
weight's only reader knows all of the weight's factors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode


class ReadWatch(TorchDispatchMode):
    """Notes for every parameter the innermost modules that ran an operation on it, by name."""

    def __init__(self, params: dict[nn.Parameter, str]) -> None:
        super().__init__()
        self.readers: dict[str, set[str]] = {name: set() for name in params.values()}
        self._params = {id(parameter): name for parameter, name in params.items()}
        self._inside: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in _pytree.tree_leaves((args, kwargs)):
            name = self._params.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None
            if name is not None:
                self.readers[name].add(self._inside[-1] if self._inside else "")
        return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def over(self, model: nn.Module) -> Iterator[None]:
        """Watches what runs inside."""
        handles = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(lambda m, i, name=name: self._inside.append(name)))
            handles.append(module.register_forward_hook(lambda m, i, o: self._leave(), always_call=True))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()
            self._inside.clear()

    def _leave(self) -> None:
        if self._inside:
            self._inside.pop()
