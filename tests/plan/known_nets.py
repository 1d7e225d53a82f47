"""Profiles of published nets, from their papers' shapes; compute is spread over layers by multiplications.

A layer is (name, weight shape, multiplications of one image); a rank-2 weight is fully connected. All have a bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from poseidon.plan import FactorShape, LayerProfile, NetProfile, ParamProfile

Layers = Sequence[tuple[str, tuple[int, ...], int]]


def conv(name: str, outputs: int, inputs: int, kernel: int, size: int) -> tuple[str, tuple[int, ...], int]:
    """A convolution with a size × size top."""
    return name, (outputs, inputs, kernel, kernel), outputs * inputs * kernel * kernel * size * size


def fc(name: str, outputs: int, inputs: int) -> tuple[str, tuple[int, ...], int]:
    return name, (outputs, inputs), outputs * inputs


def vgg19(num_classes: int) -> Layers:
    widths = [(64, 2, 224), (128, 2, 112), (256, 4, 56), (512, 4, 28), (512, 4, 14)]
    layers, inputs = [], 3
    for stage, (width, count, size) in enumerate(widths, 1):
        for i in range(1, count + 1):
            layers.append(conv(f"conv{stage}_{i}", width, inputs, 3, size))
            inputs = width
    return [*layers, fc("fc6", 4096, 25088), fc("fc7", 4096, 4096), fc("fc8", num_classes, 4096)]


ALEXNET: Layers = [
    conv("conv1", 96, 3, 11, 55),
    conv("conv2", 256, 48, 5, 27),
    conv("conv3", 384, 256, 3, 13),
    conv("conv4", 384, 192, 3, 13),
    conv("conv5", 256, 192, 3, 13),
    fc("fc6", 4096, 9216),
    fc("fc7", 4096, 4096),
    fc("fc8", 1000, 4096),
]


def resnet50() -> Layers:
    layers, inputs = [conv("conv1", 64, 3, 7, 112)], 64
    for stage, (width, count, size) in enumerate([(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)], 2):
        for i in range(count):
            block = f"res{stage}{'abcdef'[i]}"
            if i == 0:
                layers.append(conv(f"{block}_1", 4 * width, inputs, 1, size))
            layers += [
                conv(f"{block}_2a", width, inputs, 1, size),
                conv(f"{block}_2b", width, width, 3, size),
                conv(f"{block}_2c", 4 * width, width, 1, size),
            ]
            inputs = 4 * width
    return [*layers, fc("fc1000", 1000, 2048)]


def profile_of(layers: Layers, batch: int, compute_s: float, **options) -> NetProfile:
    """A third of the time is forward's."""
    total = sum(work for _, _, work in layers)
    params, timed = [], []
    for name, shape, work in layers:
        factors = FactorShape(batch, *shape) if len(shape) == 2 else None
        params.append(ParamProfile(f"{name}/0", shape, factors=factors))
        params.append(ParamProfile(f"{name}/1", shape[:1], rides_with=f"{name}/0" if factors else None))
        share = compute_s * work / total
        timed.append(LayerProfile(name, share / 3, 2 * share / 3, (f"{name}/0", f"{name}/1")))
    return NetProfile(tuple(timed), tuple(params), **options)


def num_params(layers: Layers) -> int:
    return sum(math.prod(shape) + shape[0] for _, shape, _ in layers)
