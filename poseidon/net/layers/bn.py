"""BN (PSPNet, SegNet): batch normalisation with scale and shift, y = γ · (x − μ) / √(σ² + ε) + β, per channel.

Two families share the name, with parameters of shape 1 × C × 1 × 1:

    PSPNet   γ, β, and running μ and σ² (statistics, never learned). TRAIN normalises with the batch's and moves the
             running ones by momentum (or 1 − decay, in its earlier version); TEST, `frozen`, and a layer frozen by
             pattern use the running ones. Variances that are stored are unbiased.
    SegNet   γ and β only. `bn_mode: LEARN` normalises with the batch's statistics in both phases; INFERENCE is
             y = γ · x + β, with statistics that a tool has worked into γ and β

PSPNet's is meant where slope_filler, bias_filler, momentum, frozen or moving_average are given, SegNet's otherwise. ε
is `eps`, or `var_eps` with moving_average, and 1e-9 in SegNet's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Layer, Shape, text_of
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2

_RUNNING_FIELDS = ("slope_filler", "bias_filler", "momentum", "frozen", "moving_average")
_SEGNET_EPS = 1e-9
_ONES = caffe_pb2.FillerParameter(type="constant", value=1)


@register("BN")
class BN(Layer):
    # `engine` chooses between implementations of the same result in the fork; here torch chooses.
    fresh_top = True

    @property
    def has_running(self) -> bool:
        """Whether it is PSPNet's, which keeps statistics."""
        return any(self.spec.bn_param.HasField(field) for field in _RUNNING_FIELDS)

    @property
    def uses_running(self) -> bool:
        return self.has_running and (not self.training_phase or self.spec.bn_param.frozen or self.context.frozen)

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.bn_param
        shape = self._param_shape(bottom_shapes[0])
        for first, second, default in (("slope_filler", "scale_filler", _ONES), ("bias_filler", "shift_filler", None)):
            given = [getattr(options, name) for name in (first, second) if options.HasField(name)]
            self.add_param(shape, given[0] if given else default)
        if self.has_running:
            self.add_param(shape, learned=False)
            self.add_param(shape, _ONES, learned=False)

    def _param_shape(self, shape: Shape) -> Shape:
        if len(shape) < 2:
            raise self.error(f"needs a bottom with at least 2 axes, N x C x ..., got {text_of(shape)}")
        return 1, shape[1], 1, 1

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        if self._param_shape(shape) != self.param_shapes[0]:
            raise self.error(
                f"was built for {self.param_shapes[0][1]} channels, got a bottom of shape {text_of(shape)}"
            )
        return [shape]

    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.bn_param
        scale, shift = self.param(0).flatten(), self.param(1).flatten()
        if options.bn_mode == caffe_pb2.BNParameter.INFERENCE and not self.has_running:
            per_channel = (1, -1, *[1] * (x.dim() - 2))
            return x * scale.view(per_channel) + shift.view(per_channel)
        if self.uses_running:
            # Copies: backward reads them, and whoever loads weights meanwhile may change the originals.
            mean, variance = (self.param(index).detach().flatten().clone() for index in (2, 3))
            return F.batch_norm(x, mean, variance, scale, shift, training=False, eps=self._eps())
        if self.has_running:
            self._move(x.detach())
        return F.batch_norm(x, None, None, scale, shift, training=True, eps=self._eps())

    def _eps(self) -> float:
        options = self.spec.bn_param
        if options.moving_average:
            return options.var_eps
        return options.eps if self.has_running else _SEGNET_EPS

    @torch.no_grad()
    def _move(self, x: Tensor) -> None:
        """Lets the running statistics follow those of the batch."""
        options = self.spec.bn_param
        share = options.decay if options.moving_average else 1 - options.momentum
        axes = [axis for axis in range(x.dim()) if axis != 1]
        num_values = x.numel() // max(x.shape[1], 1)
        variance, mean = torch.var_mean(x, axes, correction=1 if num_values > 1 else 0)
        self.param_owner(2).view(-1).lerp_(mean.to(self.param_owner(2).dtype), share)
        self.param_owner(3).view(-1).lerp_(variance.to(self.param_owner(3).dtype), share)
