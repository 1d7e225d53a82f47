"""ResNet-50 and ResNet-152: He et al. 2015, stride in the first 1×1 of a stage; ImageNet, 224×224."""

from __future__ import annotations

from functools import partial

from caffe.net_spec import NetSpec, Top
from models.model import IMAGENET, IMAGENET_MEANS, Model, momentum_sgd, scoring, telling
from models.parts import (
    MSRA,
    XAVIER,
    ZERO,
    L,
    P,
    Style,
    accuracy,
    batch_norm,
    conv,
    global_average,
    inner_product,
    max_pool,
    relu,
    softmax_loss,
)


def conv_norm(n: NetSpec, suffix: str, bottom: Top, num_output: int, **shape: int) -> Top:
    """A bias-free convolution, its batch normalisation and the learned scale; `suffix` "2a_branch1" names all three."""
    name, norm = (suffix, f"_{suffix}") if suffix == "conv1" else (f"res{suffix}", suffix)
    blob = conv(n, name, bottom, num_output, Style(MSRA, None), **shape)
    return batch_norm(n, f"bn{norm}", f"scale{norm}", blob)


def bottleneck(n: NetSpec, unit: str, bottom: Top, width: int, stride: int, *, projects: bool) -> Top:
    """y = relu(shortcut + 1×1 · 3×3 · 1×1), `width` channels inside and 4·`width` outside."""
    shortcut = bottom
    if projects:
        shortcut = conv_norm(n, f"{unit}_branch1", bottom, 4 * width, kernel_size=1, stride=stride)
    blob = conv_norm(n, f"{unit}_branch2a", bottom, width, kernel_size=1, stride=stride)
    blob = relu(n, f"res{unit}_branch2a_relu", blob)
    blob = conv_norm(n, f"{unit}_branch2b", blob, width, pad=1, kernel_size=3)
    blob = relu(n, f"res{unit}_branch2b_relu", blob)
    blob = conv_norm(n, f"{unit}_branch2c", blob, 4 * width, kernel_size=1)
    n[f"res{unit}"] = L.Eltwise(shortcut, blob, operation=P.Eltwise.SUM)
    return relu(n, f"res{unit}_relu", n[f"res{unit}"])


def unit_name(stage: int, index: int, num_units: int) -> str:
    """2a, 2b, 2c; in stages too long for letters 4a, 4b1, 4b2, …"""
    if num_units <= 6 or index == 0:
        return f"{stage}{'abcdef'[index]}"
    return f"{stage}b{index}"


def resnet(n: NetSpec, *, depths: tuple[int, ...]) -> None:
    """`depths`: how many bottlenecks each stage has."""
    blob = relu(n, "conv1_relu", conv_norm(n, "conv1", n.data, 64, pad=3, kernel_size=7, stride=2))
    blob = max_pool(n, "pool1", blob, kernel_size=3, stride=2)
    for stage, num_units in enumerate(depths, start=2):
        for index in range(num_units):
            stride = 2 if index == 0 and stage > 2 else 1
            unit = unit_name(stage, index, num_units)
            blob = bottleneck(n, unit, blob, 16 * 2**stage, stride, projects=index == 0)
    scores = inner_product(n, "fc1000", global_average(n, "pool5", blob), 1000, Style(XAVIER, ZERO))
    accuracy(n, "accuracy", scores)
    accuracy(n, "accuracy_top5", scores, top_k=5)
    softmax_loss(n, "loss", scores)


def model(title: str, depths: tuple[int, ...]) -> Model:
    return Model(
        body=partial(resnet, depths=depths),
        title=title,
        image_shape=(3, 224, 224),
        sources=IMAGENET,
        batches={"TRAIN": 32, "TEST": 25},
        transform={"crop_size": 224, "mean_value": IMAGENET_MEANS},
        mirrors=True,
        note="Batches of 256 as 8 of 32. The paper divides the rate when the error stalls; here every 30 epochs.",
        schedule={
            **scoring(2000, 5000, at_once=False),
            **momentum_sgd(0.1, 0.0001, "multistep", gamma=0.1, stepvalue=[150000, 300000, 450000]),
            "iter_size": 8,
            **telling(20, 600000, 10000, averages=True),
        },
    )


MODELS = {"resnet50": model("ResNet-50", (3, 4, 6, 3)), "resnet152": model("ResNet-152", (3, 8, 36, 3))}
