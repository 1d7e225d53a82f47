"""LeNet: LeCun et al. 1998, in the ReLU and softmax form Caffe made usual; MNIST, 28×28."""

from __future__ import annotations

from caffe.net_spec import NetSpec
from models.model import Model, momentum_sgd, scoring, telling
from models.parts import XAVIER, ZERO, Style, accuracy, conv, inner_product, max_pool, relu, softmax_loss


def lenet(n: NetSpec) -> None:
    style = Style(XAVIER, ZERO, decays=False)
    blob = n.data
    for number, num_output in ((1, 20), (2, 50)):
        blob = conv(n, f"conv{number}", blob, num_output, style, kernel_size=5, stride=1)
        blob = max_pool(n, f"pool{number}", blob, kernel_size=2, stride=2)
    blob = relu(n, "relu1", inner_product(n, "ip1", blob, 500, style))
    scores = inner_product(n, "ip2", blob, 10, style)
    accuracy(n, "accuracy", scores)
    softmax_loss(n, "loss", scores)


MODELS = {
    "lenet": Model(
        body=lenet,
        title="LeNet",
        image_shape=(1, 28, 28),
        sources={"TRAIN": "data/mnist_train_lmdb", "TEST": "data/mnist_test_lmdb"},
        batches={"TRAIN": 64, "TEST": 100},
        transform={"scale": 0.00390625},
        mirrors=False,
        schedule={
            **scoring(100, 500),
            **momentum_sgd(0.01, 0.0005, "inv", gamma=0.0001, power=0.75),
            **telling(100, 10000, 5000),
        },
    ),
}
