"""Destination: what the backward pass under way does with a parameter's gradient."""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge


class Destination(enum.Enum):
    ADDED = "added"  # backward(): to `grad`, from where a round takes it
    HANDED_OUT = "handed out"  # torch.autograd.grad(…, parameter): to its caller, and to nobody else
    NOWHERE = "nowhere"  # the pass does not end in the parameter


class Leaf:
    """A parameter where graphs end. It may be asked during a backward pass."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self._node: Any = None

    def destination(self) -> Destination:
        found = Destination.NOWHERE if self._node is None else self._look()
        if found is Destination.NOWHERE and self.parameter.requires_grad:
            # Autograd may have made the parameter another end since. Looking it up takes long beside asking.
            self._node = get_gradient_edge(self.parameter).node
            found = self._look()
        return found

    def _look(self) -> Destination:
        try:
            is_added = torch._C._will_engine_execute_node(self._node)
        except RuntimeError:  # raised for an end that torch.autograd.grad was asked for
            return Destination.HANDED_OUT
        return Destination.ADDED if is_added else Destination.NOWHERE
