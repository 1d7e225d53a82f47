"""InnerProduct: Y = X Wᵀ + b, a fully-connected layer.

    X   bottom, axes from `axis` on flattened: M × K        (M: product of the axes before `axis`)
    W   N × K, or K × N with `transpose`                     b   N (absent without bias_term)
    Y   the bottom's axes before `axis`, then N = num_output

The gradient of W is uᵀ v with u = ∂loss/∂Y (M × N) and v = X (M × K), that of b the sum of u's rows. Whoever sets
`factor_tap` gets u and v instead, once per backward pass through this layer, and W gets no gradient here; nor does b,
unless `taps_bias` is turned off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from poseidon.net.layer import Layer, Shape, count_of, text_of
from poseidon.net.registry import register

# Takes u and v; both belong to autograd and are good only until it returns.
FactorTap = Callable[[Tensor, Tensor], None]


class _Tapped(torch.autograd.Function):
    """x Wᵀ + b, whose backward hands out factors. The parameters' ready hooks fire all the same, without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tap: FactorTap, taps_bias: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tap, ctx.taps_bias = tap, taps_bias
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        u = grad.reshape(-1, grad.shape[-1])
        ctx.tap(u, x.reshape(-1, x.shape[-1]))
        bias_grad = u.sum(0) if ctx.needs_input_grad[2] and not ctx.taps_bias else None
        return (grad @ weight.to(grad.dtype) if ctx.needs_input_grad[0] else None), None, bias_grad, None, None


@register("InnerProduct")
class InnerProduct(Layer):
    fresh_top = True
    factor_tap: FactorTap | None = None
    taps_bias = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.inner_product_param
        if options.num_output < 1:
            raise self.error(f"inner_product_param.num_output must be at least 1, got {options.num_output}")
        axis = self.axis(options.axis, bottom_shapes[0])
        num_inputs = count_of(bottom_shapes[0], axis)
        weight = (num_inputs, options.num_output) if options.transpose else (options.num_output, num_inputs)
        self.add_param(weight, options.weight_filler)
        if options.bias_term:
            self.add_param((options.num_output,), options.bias_filler)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        options = self.spec.inner_product_param
        shape = bottom_shapes[0]
        axis = self.axis(options.axis, shape)
        expected = self.param_shapes[0][0 if options.transpose else 1]
        if count_of(shape, axis) != expected:
            raise self.error(
                f"was built for {expected} inputs per sample, got a bottom of shape {text_of(shape)} "
                f"({count_of(shape, axis)} from axis {axis} on); the size before an InnerProduct cannot change"
            )
        return [(*shape[:axis], options.num_output)]

    def num_rows(self, bottom_shape: Shape) -> int:
        """How many rows it multiplies: M."""
        return count_of(bottom_shape, 0, self.axis(self.spec.inner_product_param.axis, bottom_shape))

    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.inner_product_param
        weight = self.param(0).t() if options.transpose else self.param(0)
        bias = self.param(1) if options.bias_term else None
        x = x.flatten(options.axis % x.dim())
        if self.factor_tap is not None and weight.requires_grad and torch.is_grad_enabled():
            return _Tapped.apply(x, weight, bias, self.factor_tap, self.taps_bias)
        return F.linear(x, weight, bias)
