"""The zoo's parameter counts once more, by formulas over the architectures' published tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from test_models import NUM_PARAMETERS


def conv(size: int, inputs: int, outputs: int, *, group: int = 1) -> int:
    """size × size weights for every pair of channels within a group, and a bias."""
    return size * size * inputs // group * outputs + outputs


def connected(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def normed(height: int, width: int, inputs: int, outputs: int) -> int:
    """A convolution without bias, with a learned scale and offset per channel."""
    return height * width * inputs * outputs + 2 * outputs


def lenet() -> int:
    return conv(5, 1, 20) + conv(5, 20, 50) + connected(4 * 4 * 50, 500) + connected(500, 10)


def cifar10(*hidden: int) -> int:
    sizes = (4 * 4 * 64, *hidden, 10)
    scores = sum(connected(inputs, outputs) for inputs, outputs in itertools.pairwise(sizes))
    return conv(5, 3, 32) + conv(5, 32, 32) + conv(5, 32, 64) + scores


def alexnet() -> int:
    features = conv(11, 3, 96) + conv(5, 96, 256, group=2) + conv(3, 256, 384)
    features += conv(3, 384, 384, group=2) + conv(3, 384, 256, group=2)
    return features + connected(6 * 6 * 256, 4096) + connected(4096, 4096) + connected(4096, 1000)


def googlenet() -> int:
    """The paper's table 1: inputs; 1×1, 3×3 reduced and 3×3, 5×5 reduced and 5×5, projection."""
    rows = """192 64 96 128 16 32 32 / 256 128 128 192 32 96 64 / 480 192 96 208 16 48 64 / 512 160 112 224 24 64 64 /
    512 128 128 256 24 64 64 / 512 112 144 288 32 64 64 / 528 256 160 320 32 128 128 / 832 256 160 320 32 128 128 /
    832 384 192 384 48 128 128"""
    total = conv(7, 3, 64) + conv(1, 64, 64) + conv(3, 64, 192) + connected(1024, 1000)
    for row in rows.split("/"):
        inputs, one, reduced3, three, reduced5, five, projected = map(int, row.split())
        total += conv(1, inputs, one) + conv(1, inputs, reduced3) + conv(3, reduced3, three)
        total += conv(1, inputs, reduced5) + conv(5, reduced5, five) + conv(1, inputs, projected)
    for inputs in (512, 528):
        total += conv(1, inputs, 128) + connected(4 * 4 * 128, 1024) + connected(1024, 1000)
    return total


def vgg(widths: str, num_classes: int) -> int:
    """`widths`: of all convolutions, one after another."""
    channels = [3, *map(int, widths.split())]
    features = sum(conv(3, inputs, outputs) for inputs, outputs in itertools.pairwise(channels))
    return features + connected(7 * 7 * 512, 4096) + connected(4096, 4096) + connected(4096, num_classes)


def resnet(*depths: int) -> int:
    total, inputs = normed(7, 7, 3, 64) + connected(2048, 1000), 64
    for width, depth in zip((64, 128, 256, 512), depths, strict=True):
        total += normed(1, 1, inputs, 4 * width)  # the first shortcut
        for _ in range(depth):
            total += normed(1, 1, inputs, width) + normed(3, 3, width, width) + normed(1, 1, width, 4 * width)
            inputs = 4 * width
    return total


def inception_v3() -> int:
    """Branch by branch: channels in, then height × width × channels of each convolution."""

    def branches(texts: Iterable[str]) -> int:
        total = 0
        for text in texts:
            first, *steps = text.split()
            inputs = int(first)
            for step in steps:
                height, width, outputs = map(int, step.split("x"))
                total += normed(height, width, inputs, outputs)
                inputs = outputs
        return total

    total = branches(["3 3x3x32 3x3x32 3x3x64 1x1x80 3x3x192"])
    for n, projected in ((192, 32), (256, 64), (288, 64)):
        total += branches([f"{n} 1x1x64", f"{n} 1x1x48 5x5x64", f"{n} 1x1x64 3x3x96 3x3x96", f"{n} 1x1x{projected}"])
    total += branches(["288 3x3x384", "288 1x1x64 3x3x96 3x3x96"])
    for c in (128, 160, 160, 192):
        total += branches(
            ["768 1x1x192", f"768 1x1x{c} 1x7x{c} 7x1x192", f"768 1x1x{c} 7x1x{c} 1x7x{c} 7x1x{c} 1x7x192"]
        )
        total += branches(["768 1x1x192"])
    total += branches(["768 1x1x128 5x5x768"]) + connected(768, 1000)
    total += branches(["768 1x1x192 3x3x320", "768 1x1x192 1x7x192 7x1x192 3x3x192"])
    for n in (1280, 2048):
        total += branches([f"{n} 1x1x320", f"{n} 1x1x384", "384 1x3x384", "384 3x1x384", f"{n} 1x1x192"])
        total += branches([f"{n} 1x1x448 3x3x384", "384 1x3x384", "384 3x1x384"])
    return total + connected(2048, 1000)


VGG_16 = "64 64 128 128 256 256 256 512 512 512 512 512 512"
VGG_19 = "64 64 128 128 256 256 256 256 512 512 512 512 512 512 512 512"
COUNTS = {
    "lenet": lenet(),
    "cifar10_quick": cifar10(64),
    "cifar10_full": cifar10(),
    "alexnet": alexnet(),
    "caffenet": alexnet(),
    "googlenet": googlenet(),
    "vgg16": vgg(VGG_16, 1000),
    "vgg19": vgg(VGG_19, 1000),
    "vgg19_22k": vgg(VGG_19, 21_841),
    "resnet50": resnet(3, 4, 6, 3),
    "resnet152": resnet(3, 8, 36, 3),
    "inception_v3": inception_v3(),
}


@pytest.mark.parametrize("name", sorted(NUM_PARAMETERS))
def test_published_count_follows_from_the_tables(name: str) -> None:
    assert COUNTS[name] == NUM_PARAMETERS[name]
