"""Inception-V3: Szegedy et al. 2015, with its auxiliary classifier; ImageNet, 299×299.

Every convolution is without bias and followed by batch normalisation (ε 0.001), a learned scale and a ReLU. Names say
where a layer is: `mixed_4/7x7dbl_3` is the third convolution of the fifth module's branch of doubled 7×7s, each of
which is a row of 1×7 and a column of 7×1. The databases that the other ImageNet nets read usually hold images of
256×256, too small for this one: hence its own.
"""

from __future__ import annotations

from caffe.net_spec import NetSpec, Top
from models.model import Model, scoring, telling
from models.parts import (
    MSRA,
    XAVIER,
    ZERO,
    Style,
    accuracy,
    average_pool,
    batch_norm,
    concat,
    conv,
    dropout,
    global_average,
    inner_product,
    max_pool,
    relu,
    softmax_loss,
)

ONE = {"kernel_size": 1}
SAME_3 = {"pad": 1, "kernel_size": 3}
SAME_5 = {"pad": 2, "kernel_size": 5}
HALF = {"kernel_size": 3, "stride": 2}
KEEP = {"kernel_size": 3, "stride": 1, "pad": 1}  # of a pooling


def row(size: int) -> dict[str, int]:
    """1 × size, the sides kept."""
    return {"pad_h": 0, "pad_w": size // 2, "kernel_h": 1, "kernel_w": size, "stride": 1}


def column(size: int) -> dict[str, int]:
    return {"pad_h": size // 2, "pad_w": 0, "kernel_h": size, "kernel_w": 1, "stride": 1}


def conv_norm(n: NetSpec, name: str, bottom: Top, num_output: int, **shape: int) -> Top:
    blob = conv(n, name, bottom, num_output, Style(MSRA, None), **shape)
    return relu(n, f"{name}/relu", batch_norm(n, f"{name}/bn", f"{name}/scale", blob, eps=0.001))


def chain(n: NetSpec, name: str, bottom: Top, *steps: tuple[int, dict[str, int]]) -> Top:
    """Convolutions one after another, `name_1`, `name_2`, …; a step is its channels and its shape."""
    for number, (num_output, shape) in enumerate(steps, start=1):
        bottom = conv_norm(n, f"{name}_{number}", bottom, num_output, **shape)
    return bottom


def pooled(n: NetSpec, scope: str, bottom: Top, num_output: int) -> Top:
    return conv_norm(n, f"{scope}/pool_proj", average_pool(n, f"{scope}/pool", bottom, **KEEP), num_output, **ONE)


# -- the five kinds of modules ----------------------------------------------------------------------------------------
def wide(n: NetSpec, scope: str, bottom: Top, projection: int) -> Top:
    """35×35: 1×1, 5×5, two 3×3, pooling."""
    return concat(
        n,
        f"{scope}/output",
        conv_norm(n, f"{scope}/1x1", bottom, 64, **ONE),
        chain(n, f"{scope}/5x5", bottom, (48, ONE), (64, SAME_5)),
        chain(n, f"{scope}/3x3dbl", bottom, (64, ONE), (96, SAME_3), (96, SAME_3)),
        pooled(n, scope, bottom, projection),
    )


def to_17(n: NetSpec, scope: str, bottom: Top) -> Top:
    """35×35 to 17×17."""
    return concat(
        n,
        f"{scope}/output",
        conv_norm(n, f"{scope}/3x3", bottom, 384, **HALF),
        chain(n, f"{scope}/3x3dbl", bottom, (64, ONE), (96, SAME_3), (96, HALF)),
        max_pool(n, f"{scope}/pool", bottom, **HALF),
    )


def factorised(n: NetSpec, scope: str, bottom: Top, width: int) -> Top:
    """17×17: 1×1, a 7×7 and two 7×7 as rows and columns, pooling."""
    doubled = [(width, ONE), (width, column(7)), (width, row(7)), (width, column(7)), (192, row(7))]
    return concat(
        n,
        f"{scope}/output",
        conv_norm(n, f"{scope}/1x1", bottom, 192, **ONE),
        chain(n, f"{scope}/7x7", bottom, (width, ONE), (width, row(7)), (192, column(7))),
        chain(n, f"{scope}/7x7dbl", bottom, *doubled),
        pooled(n, scope, bottom, 192),
    )


def to_8(n: NetSpec, scope: str, bottom: Top) -> Top:
    """17×17 to 8×8."""
    return concat(
        n,
        f"{scope}/output",
        chain(n, f"{scope}/3x3", bottom, (192, ONE), (320, HALF)),
        chain(n, f"{scope}/7x7", bottom, (192, ONE), (192, row(7)), (192, column(7)), (192, HALF)),
        max_pool(n, f"{scope}/pool", bottom, **HALF),
    )


def expanded(n: NetSpec, scope: str, bottom: Top) -> Top:
    """8×8: 3×3s as a row and a column side by side."""
    three = conv_norm(n, f"{scope}/3x3_1", bottom, 384, **ONE)
    double = chain(n, f"{scope}/3x3dbl", bottom, (448, ONE), (384, SAME_3))
    return concat(
        n,
        f"{scope}/output",
        conv_norm(n, f"{scope}/1x1", bottom, 320, **ONE),
        conv_norm(n, f"{scope}/3x3_2a", three, 384, **row(3)),
        conv_norm(n, f"{scope}/3x3_2b", three, 384, **column(3)),
        conv_norm(n, f"{scope}/3x3dbl_3a", double, 384, **row(3)),
        conv_norm(n, f"{scope}/3x3dbl_3b", double, 384, **column(3)),
        pooled(n, scope, bottom, 192),
    )


# -- the net ----------------------------------------------------------------------------------------------------------
def classify(n: NetSpec, prefix: str, bottom: Top, weight: float) -> None:
    scores = inner_product(n, f"{prefix}classifier", bottom, 1000, Style(XAVIER, ZERO))
    softmax_loss(n, f"{prefix}loss", scores, weight)
    accuracy(n, f"{prefix}accuracy", scores)
    accuracy(n, f"{prefix}accuracy_top5", scores, top_k=5)


def auxiliary_head(n: NetSpec, bottom: Top) -> None:
    blob = average_pool(n, "aux/pool", bottom, kernel_size=5, stride=3)
    blob = chain(n, "aux/conv", blob, (128, ONE), (768, {"kernel_size": 5}))
    classify(n, "aux/", blob, 0.4)


def inception_v3(n: NetSpec) -> None:
    blob = chain(n, "conv", n.data, (32, HALF), (32, {"kernel_size": 3}), (64, SAME_3))
    blob = conv_norm(n, "conv_4", max_pool(n, "pool_1", blob, **HALF), 80, **ONE)
    blob = conv_norm(n, "conv_5", blob, 192, kernel_size=3)
    blob = max_pool(n, "pool_2", blob, **HALF)
    for number, projection in enumerate((32, 64, 64)):
        blob = wide(n, f"mixed_{number}", blob, projection)
    blob = to_17(n, "mixed_3", blob)
    for number, width in enumerate((128, 160, 160, 192), start=4):
        blob = factorised(n, f"mixed_{number}", blob, width)
    auxiliary_head(n, blob)
    blob = to_8(n, "mixed_8", blob)
    for number in (9, 10):
        blob = expanded(n, f"mixed_{number}", blob)
    classify(n, "", dropout(n, "drop", global_average(n, "pool_3", blob), 0.2), 1)


MODELS = {
    "inception_v3": Model(
        body=inception_v3,
        title="Inception-V3",
        image_shape=(3, 299, 299),
        sources={"TRAIN": "data/ilsvrc12_large_train_lmdb", "TEST": "data/ilsvrc12_large_val_lmdb"},
        batches={"TRAIN": 32, "TEST": 25},
        transform={"scale": 0.0078125, "crop_size": 299, "mean_value": [128, 128, 128]},
        mirrors=True,
        note="100 epochs of batches of 32, the rate times 0.94 every two epochs. Caffe's loss smooths no labels.",
        schedule={
            "type": "RMSProp",
            **scoring(2000, 20000, at_once=False),
            "base_lr": 0.045,
            "lr_policy": "step",
            "gamma": 0.94,
            "stepsize": 80000,
            "rms_decay": 0.9,
            "delta": 1,
            "weight_decay": 0.00004,
            **telling(40, 4000000, 40000, averages=True),
        },
    ),
}
