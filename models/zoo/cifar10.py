"""Krizhevsky's two small nets for CIFAR-10, 32×32: the quick one, and the full one, which normalises within channels
and keeps its weights small by a decay of 250 times the net's on the scores."""

from __future__ import annotations

from caffe.net_spec import NetSpec, Top
from models.model import CIFAR10, Model, momentum_sgd, scoring, telling
from models.parts import (
    P,
    accuracy,
    average_pool,
    conv,
    gaussian,
    inner_product,
    lrn,
    max_pool,
    relu,
    softmax_loss,
)

WINDOW = {"kernel_size": 5, "pad": 2, "stride": 1}
HALF = {"kernel_size": 3, "stride": 2}


def quick(n: NetSpec) -> None:
    blob = conv(n, "conv1", n.data, 32, gaussian(0.0001, decays=False), **WINDOW)
    blob = relu(n, "relu1", max_pool(n, "pool1", blob, **HALF))
    for number, num_output in ((2, 32), (3, 64)):
        blob = conv(n, f"conv{number}", blob, num_output, gaussian(0.01, decays=False), **WINDOW)
        blob = average_pool(n, f"pool{number}", relu(n, f"relu{number}", blob), **HALF)
    blob = inner_product(n, "ip1", blob, 64, gaussian(0.1, decays=False))
    classify(n, inner_product(n, "ip2", blob, 10, gaussian(0.1, decays=False)))


def full(n: NetSpec) -> None:
    within = {"local_size": 3, "alpha": 5e-5, "norm_region": P.LRN.WITHIN_CHANNEL}
    blob = conv(n, "conv1", n.data, 32, gaussian(0.0001, decays=False), **WINDOW)
    blob = relu(n, "relu1", max_pool(n, "pool1", blob, **HALF))
    blob = conv(n, "conv2", lrn(n, "norm1", blob, **within), 32, gaussian(0.01, decays=False), **WINDOW)
    blob = average_pool(n, "pool2", relu(n, "relu2", blob), **HALF)
    blob = conv(n, "conv3", lrn(n, "norm2", blob, **within), 64, gaussian(0.01, decays=False), **WINDOW)
    blob = average_pool(n, "pool3", relu(n, "relu3", blob), **HALF)
    classify(n, inner_product(n, "ip1", blob, 10, gaussian(0.01, decay_mult=250)))


def classify(n: NetSpec, scores: Top) -> None:
    accuracy(n, "accuracy", scores)
    softmax_loss(n, "loss", scores)


SURROUNDINGS = {
    "image_shape": (3, 32, 32),
    "sources": CIFAR10,
    "batches": {"TRAIN": 100, "TEST": 100},
    "transform": {"mean_file": "data/cifar10_mean.binaryproto"},
    "mirrors": False,
}

MODELS = {
    "cifar10_quick": Model(
        body=quick,
        title="CIFAR10_quick",
        **SURROUNDINGS,
        note="8 epochs at 0.001, then 2 at a tenth of it.",
        schedule={
            **scoring(100, 500),
            **momentum_sgd(0.001, 0.004, "multistep", gamma=0.1, stepvalue=4000),
            **telling(100, 5000, 1000),
        },
    ),
    "cifar10_full": Model(
        body=full,
        title="CIFAR10_full",
        **SURROUNDINGS,
        note="120 epochs at 0.001, then 10 at a tenth and 10 at a hundredth of it.",
        schedule={
            **scoring(100, 1000),
            **momentum_sgd(0.001, 0.004, "multistep", gamma=0.1, stepvalue=[60000, 65000]),
            **telling(200, 70000, 10000),
        },
    ),
}
