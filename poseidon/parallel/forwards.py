"""Forwards that hand out structure: what stands in for the forward of an nn.Linear or nn.Embedding inside Parallel.

A Linear's weight gets no gradient of its own while its factors are tapped; its ready hook fires all the same. Under
autocast the factors are those of the product that was computed, in its narrower type. Where backward itself is
differentiated (a gradient penalty), what that gives the weight is a dense gradient beside the factors.

A copy of such a module (an EMA of the model, a pickle) gets the plain forward: it is nobody's replica.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from poseidon.errors import UsageError
from poseidon.parallel.destination import Destination, Leaf

# Takes u and v, as rows; both are good only until it returns.
FactorTap = Callable[[Tensor, Tensor], None]

Rows = int | Tensor
"""How many, or which."""


def input_grad(grad: Tensor, weight: Tensor) -> Tensor:
    """By a name of its own: a benchmark that stands in for a GPU exchanges it."""
    return grad @ weight


def _cast(tensor: Tensor) -> Tensor:
    """As autocast does: double precision is left alone."""
    is_double = tensor.dtype == torch.float64
    return tensor if is_double else tensor.to(torch.get_autocast_dtype(tensor.device.type))


class TappedLinear(torch.autograd.Function):
    """x Wᵀ + b, whose backward hands out u and v instead of the gradients of W and, if `taps_bias`, of b."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, leaf: Leaf, tap: FactorTap, taps_bias: bool
    ) -> Tensor:
        device = x.device.type
        if torch.is_autocast_enabled(device):
            ctx.input_dtype = x.dtype
            x, used = _cast(x), _cast(weight)
            bias = None if bias is None else _cast(bias)
            with torch.autocast(device, enabled=False):
                y = F.linear(x, used, bias)
        else:
            ctx.input_dtype, used = x.dtype, weight
            y = F.linear(x, weight, bias)
        ctx.save_for_backward(x, used, weight)
        ctx.leaf, ctx.tap, ctx.taps_bias = leaf, tap, taps_bias
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, used, weight = ctx.saved_tensors
        u, v = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        destination = ctx.leaf.destination()
        if destination is Destination.ADDED:
            ctx.tap(u.detach(), v.detach())
        if torch.is_grad_enabled():  # this pass will be differentiated: down to the weight, not to a copy of it
            used = weight.to(used.dtype)
        own = input_grad(grad, used).to(ctx.input_dtype) if ctx.needs_input_grad[0] else None
        is_tapped = ctx.taps_bias and destination is Destination.ADDED
        bias = u.sum(0) if ctx.needs_input_grad[2] and not is_tapped else None
        asked = _weight_grad(ctx, u, v, weight) if destination is Destination.HANDED_OUT else None
        return own, asked, bias, None, None, None


def _weight_grad(ctx: Any, u: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """What torch.autograd.grad asks for is nobody's factors."""
    if torch.is_grad_enabled() and v.dtype != ctx.input_dtype:
        raise UsageError(
            "a gradient by a weight is to be differentiated again (torch.autograd.grad with create_graph) under "
            'autocast, while the weight travels as factors: wrap the model with Parallel(…, schemes={"*": "ring"})'
        )
    return (u.t() @ v).to(weight.dtype)


class Forward:
    """Base: callable in place of `module.forward`. Turned off (`is_on`), it is the module's own."""

    is_on = True

    def __init__(self, module: nn.Linear | nn.Embedding) -> None:
        self.module = module
        self.weight: nn.Parameter = module._parameters["weight"]  # type: ignore[assignment]
        self._reached: list[Rows] | None = None  # that backward has come to; None: nobody counts

    def __deepcopy__(self, memo: dict[int, Any]) -> MethodType:
        copied = memo.get(id(self.module))
        assert copied is not None, "a module is copied before what it holds"
        return MethodType(type(copied).forward, copied)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.module, "forward")  # its class's: a module is made before it gets back what it holds

    def learns(self) -> bool:
        """True if this call will give the weight a gradient, in the ordinary way of things."""
        weight = self.module.weight
        return weight is self.weight and weight.requires_grad and torch.is_grad_enabled()

    def start_counting(self) -> None:
        """From now on rows that the weight's gradient is made of are noted."""
        self._reached = []

    def stop_counting(self) -> int:
        """How many there were; of those that were named, each once: that is how often it would travel."""
        reached, self._reached = self._reached or [], None
        number = sum(rows for rows in reached if isinstance(rows, int))
        named = [rows.flatten() for rows in reached if isinstance(rows, Tensor)]
        return number + (len(torch.cat(named).unique()) if named else 0)

    def noted(self, output: Tensor, rows: Rows) -> Tensor:
        """The output, whose rows count when backward comes to it: what activation checkpointing computes twice is
        differentiated once."""
        if self._reached is not None and self.is_on and output.requires_grad:
            output.register_hook(partial(_note, self._reached, rows))
        return output


def _note(reached: list[Rows], rows: Rows, grad: Tensor) -> None:
    reached.append(rows)


class LinearForward(Forward):
    """`tap` None: an ordinary Linear."""

    tap: FactorTap | None = None
    taps_bias = True

    def __init__(self, module: nn.Linear | nn.Embedding) -> None:
        super().__init__(module)
        self._leaf = Leaf(self.weight)

    def __call__(self, input: Tensor) -> Tensor:
        module: Any = self.module
        weight, bias = module.weight, module.bias
        if not self.learns():
            return F.linear(input, weight, bias)
        num_rows = input.numel() // max(1, input.shape[-1])
        if self.tap is None or not self.is_on or weight._backward_hooks:  # a user's hook wants to see the gradient
            return self.noted(F.linear(input, weight, bias), num_rows)
        bias_is_seen = bias is not None and (bias._backward_hooks or not bias.requires_grad)
        output = TappedLinear.apply(input, weight, bias, self._leaf, self.tap, self.taps_bias and not bias_is_seen)
        return self.noted(output, num_rows)


class EmbeddingForward(Forward):
    """`gives_rows`: the table's gradient comes as a sparse tensor of the rows read."""

    gives_rows = False

    def __call__(self, input: Tensor) -> Tensor:
        module: Any = self.module
        learns = self.learns()
        gives_rows = module.sparse or (learns and self.gives_rows and self.is_on and not module.weight._backward_hooks)
        output = F.embedding(
            input, module.weight, module.padding_idx, module.max_norm, module.norm_type, False, gives_rows
        )
        return self.noted(output, input) if learns else output
