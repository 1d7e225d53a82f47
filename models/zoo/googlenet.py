"""GoogLeNet: Szegedy et al. 2014, with both auxiliary classifiers; ImageNet, 224×224."""

from __future__ import annotations

from caffe.net_spec import NetSpec, Top
from models.model import IMAGENET, IMAGENET_MEANS, Model, momentum_sgd, scoring, telling
from models.parts import (
    XAVIER,
    ZERO,
    Style,
    accuracy,
    average_pool,
    concat,
    conv,
    dropout,
    filler,
    inner_product,
    lrn,
    max_pool,
    relu,
    softmax_loss,
)

STYLE = Style(XAVIER, filler("constant", value=0.2))
SCORES = Style(XAVIER, ZERO)
HALF = {"kernel_size": 3, "stride": 2}

# Output channels per inception module: 1×1; 3×3 after its reduction; 5×5 after its reduction; projection after pooling.
MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
HEADS = {"4a": "loss1", "4d": "loss2"}


def conv_relu(n: NetSpec, name: str, bottom: Top, num_output: int, **shape: int) -> Top:
    scope, _, own = name.rpartition("/")
    return relu(n, f"{scope}/relu_{own}", conv(n, name, bottom, num_output, STYLE, **shape))


def inception(n: NetSpec, module: str, bottom: Top) -> Top:
    one, three_reduce, three, five_reduce, five, projection = MODULES[module]
    scope = f"inception_{module}"
    ones = conv_relu(n, f"{scope}/1x1", bottom, one, kernel_size=1)
    reduced = conv_relu(n, f"{scope}/3x3_reduce", bottom, three_reduce, kernel_size=1)
    threes = conv_relu(n, f"{scope}/3x3", reduced, three, pad=1, kernel_size=3)
    reduced = conv_relu(n, f"{scope}/5x5_reduce", bottom, five_reduce, kernel_size=1)
    fives = conv_relu(n, f"{scope}/5x5", reduced, five, pad=2, kernel_size=5)
    pooled = max_pool(n, f"{scope}/pool", bottom, kernel_size=3, stride=1, pad=1)
    projected = conv_relu(n, f"{scope}/pool_proj", pooled, projection, kernel_size=1)
    return concat(n, f"{scope}/output", ones, threes, fives, projected)


def classify(n: NetSpec, head: str, bottom: Top, weight: float) -> None:
    """The scores of one of the three heads, its loss and its two test accuracies."""
    scores = inner_product(n, f"{head}/classifier", bottom, 1000, SCORES)
    softmax_loss(n, f"{head}/loss", scores, weight)
    accuracy(n, f"{head}/top-1", scores)
    accuracy(n, f"{head}/top-5", scores, top_k=5)


def auxiliary_head(n: NetSpec, head: str, bottom: Top) -> None:
    blob = average_pool(n, f"{head}/ave_pool", bottom, kernel_size=5, stride=3)
    blob = conv_relu(n, f"{head}/conv", blob, 128, kernel_size=1)
    blob = relu(n, f"{head}/relu_fc", inner_product(n, f"{head}/fc", blob, 1024, STYLE))
    classify(n, head, dropout(n, f"{head}/drop_fc", blob, 0.7), 0.3)


def googlenet(n: NetSpec) -> None:
    blob = conv_relu(n, "conv1/7x7_s2", n.data, 64, pad=3, kernel_size=7, stride=2)
    blob = lrn(n, "pool1/norm1", max_pool(n, "pool1/3x3_s2", blob, **HALF))
    blob = conv_relu(n, "conv2/3x3_reduce", blob, 64, kernel_size=1)
    blob = lrn(n, "conv2/norm2", conv_relu(n, "conv2/3x3", blob, 192, pad=1, kernel_size=3))
    blob = max_pool(n, "pool2/3x3_s2", blob, **HALF)
    for module in MODULES:
        blob = inception(n, module, blob)
        if module in ("3b", "4e"):
            blob = max_pool(n, f"pool{module[0]}/3x3_s2", blob, **HALF)
        if module in HEADS:
            auxiliary_head(n, HEADS[module], blob)
    blob = average_pool(n, "pool5/7x7_s1", blob, kernel_size=7, stride=1)
    classify(n, "loss3", dropout(n, "pool5/drop_7x7_s1", blob, 0.4), 1)


MODELS = {
    "googlenet": Model(
        body=googlenet,
        title="GoogLeNet",
        image_shape=(3, 224, 224),
        sources=IMAGENET,
        batches={"TRAIN": 32, "TEST": 50},
        transform={"crop_size": 224, "mean_value": IMAGENET_MEANS},
        mirrors=True,
        note="60 epochs of batches of 32, the rate falling as the square root of what is left.",
        schedule={
            **scoring(1000, 4000, at_once=False),
            **momentum_sgd(0.01, 0.0002, "poly", power=0.5),
            **telling(40, 2400000, 40000, averages=True),
        },
    ),
}
