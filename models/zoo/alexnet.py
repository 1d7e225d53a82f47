"""AlexNet: Krizhevsky et al. 2012, two groups, ImageNet, 227×227; and CaffeNet, which pools before it normalises."""

from __future__ import annotations

from functools import partial

from caffe.net_spec import NetSpec, Top
from models.model import IMAGENET, Model, momentum_sgd, scoring, telling
from models.parts import (
    accuracy,
    conv,
    dropout,
    gaussian,
    inner_product,
    lrn,
    max_pool,
    relu,
    softmax_loss,
)

HALF = {"kernel_size": 3, "stride": 2}


def normalise_then_pool(n: NetSpec, number: int, blob: Top) -> Top:
    return max_pool(n, f"pool{number}", lrn(n, f"norm{number}", blob), **HALF)


def pool_then_normalise(n: NetSpec, number: int, blob: Top) -> Top:
    return lrn(n, f"norm{number}", max_pool(n, f"pool{number}", blob, **HALF))


def eight_layers(n: NetSpec, *, pools_first: bool, bias: float) -> None:
    """`bias`: where the biases of the second, fourth and fifth convolution and of the hidden layers start."""
    shrink = pool_then_normalise if pools_first else normalise_then_pool
    three = {"pad": 1, "kernel_size": 3}
    blob = relu(n, "relu1", conv(n, "conv1", n.data, 96, gaussian(0.01), kernel_size=11, stride=4))
    blob = shrink(n, 1, blob)
    blob = relu(n, "relu2", conv(n, "conv2", blob, 256, gaussian(0.01, bias), pad=2, kernel_size=5, group=2))
    blob = shrink(n, 2, blob)
    blob = relu(n, "relu3", conv(n, "conv3", blob, 384, gaussian(0.01), **three))
    blob = relu(n, "relu4", conv(n, "conv4", blob, 384, gaussian(0.01, bias), **three, group=2))
    blob = relu(n, "relu5", conv(n, "conv5", blob, 256, gaussian(0.01, bias), **three, group=2))
    blob = max_pool(n, "pool5", blob, **HALF)
    for number in (6, 7):
        blob = relu(n, f"relu{number}", inner_product(n, f"fc{number}", blob, 4096, gaussian(0.005, bias)))
        blob = dropout(n, f"drop{number}", blob, 0.5)
    scores = inner_product(n, "fc8", blob, 1000, gaussian(0.01))
    accuracy(n, "accuracy", scores)
    softmax_loss(n, "loss", scores)


SURROUNDINGS = {
    "image_shape": (3, 227, 227),
    "sources": IMAGENET,
    "batches": {"TRAIN": 256, "TEST": 50},
    "transform": {"crop_size": 227, "mean_file": "data/ilsvrc12_mean.binaryproto"},
    "mirrors": True,
    "schedule": {
        **scoring(1000, 1000),
        **momentum_sgd(0.01, 0.0005, "step", gamma=0.1, stepsize=100000),
        **telling(20, 450000, 10000),
    },
}

MODELS = {
    "alexnet": Model(body=partial(eight_layers, pools_first=False, bias=0.1), title="AlexNet", **SURROUNDINGS),
    "caffenet": Model(body=partial(eight_layers, pools_first=True, bias=1), title="CaffeNet", **SURROUNDINGS),
}
