"""VGG-16 and VGG-19: Simonyan and Zisserman 2014, ImageNet, 224×224; and VGG-19 for the 21 841 classes of ImageNet-22K.

3×3 convolutions in five blocks, each of which ends in a pooling that halves the sides, and three fully-connected
layers. Weights start as the authors say one can do without training a shallower net first: by Glorot and Bengio's rule.
"""

from __future__ import annotations

from functools import partial

from caffe.net_spec import NetSpec
from models.model import IMAGENET, IMAGENET_MEANS, Model, momentum_sgd, scoring, telling
from models.parts import XAVIER, ZERO, Style, accuracy, conv, dropout, inner_product, max_pool, relu, softmax_loss

WIDTHS = (64, 128, 256, 512, 512)
STYLE = Style(XAVIER, ZERO)


def vgg(n: NetSpec, *, depths: tuple[int, ...], num_classes: int) -> None:
    """`depths`: how many convolutions each block has."""
    blob = n.data
    for block, (width, depth) in enumerate(zip(WIDTHS, depths, strict=True), start=1):
        for number in range(1, depth + 1):
            blob = conv(n, f"conv{block}_{number}", blob, width, STYLE, pad=1, kernel_size=3)
            blob = relu(n, f"relu{block}_{number}", blob)
        blob = max_pool(n, f"pool{block}", blob, kernel_size=2, stride=2)
    for number in (6, 7):
        blob = relu(n, f"relu{number}", inner_product(n, f"fc{number}", blob, 4096, STYLE))
        blob = dropout(n, f"drop{number}", blob, 0.5)
    scores = inner_product(n, "fc8", blob, num_classes, STYLE)
    accuracy(n, "accuracy", scores)
    accuracy(n, "accuracy_top5", scores, top_k=5)
    softmax_loss(n, "loss", scores)


SIXTEEN, NINETEEN = (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)
IMAGENET_22K = {"TRAIN": "data/imagenet22k_train_lmdb", "TEST": "data/imagenet22k_test_lmdb"}


def model(title: str, depths: tuple[int, ...], num_classes: int = 1000, sources: dict[str, str] = IMAGENET) -> Model:
    return Model(
        body=partial(vgg, depths=depths, num_classes=num_classes),
        title=title,
        image_shape=(3, 224, 224),
        sources=sources,
        batches={"TRAIN": 32, "TEST": 25},
        transform={"crop_size": 224, "mean_value": IMAGENET_MEANS},
        mirrors=True,
        note="Batches of 256 as 8 of 32. The authors divide the rate when the error stalls, three times in 370 000; "
        "here at even distances.",
        schedule={
            **scoring(2000, 5000, at_once=False),
            **momentum_sgd(0.01, 0.0005, "multistep", gamma=0.1, stepvalue=[92500, 185000, 277500]),
            "iter_size": 8,
            **telling(20, 370000, 10000, averages=True),
        },
    )


MODELS = {
    "vgg16": model("VGG-16", SIXTEEN),
    "vgg19": model("VGG-19", NINETEEN),
    "vgg19_22k": model("VGG19-22K", NINETEEN, 21841, IMAGENET_22K),
}
