"""The model zoo's five nets as one would write them in PyTorch: what Poseidon's speed is measured against.

`build(name)` gives a module with `forward(images, labels) -> loss`. Shapes, padding and rounding equal those of
`models/<name>/train_val.prototxt`, and parameters come in the same order with the same shapes, so weights can be copied
one to one (Caffe's BatchNorm statistics are buffers here). Caffe's pooling rounds up: hence `ceil_mode`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 20, 5),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Linear(800, 500), nn.ReLU(inplace=True), nn.Linear(500, 10))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.classifier(self.features(images).flatten(1)), labels)


class Cifar10Quick(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 5, padding=2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.AvgPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.AvgPool2d(3, 2, ceil_mode=True),
        )
        self.classifier = nn.Sequential(nn.Linear(1024, 64), nn.Linear(64, 10))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.classifier(self.features(images).flatten(1)), labels)


class AlexNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 96, 11, stride=4),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(5),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(96, 256, 5, padding=2, groups=2),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(5),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(256, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 384, 3, padding=1, groups=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1, groups=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.classifier = nn.Sequential(
            nn.Linear(9216, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, 1000),
        )

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.classifier(self.features(images).flatten(1)), labels)


def conv_relu(num_in: int, num_out: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(num_in, num_out, kernel, stride, padding), nn.ReLU(inplace=True))


class Inception(nn.Module):
    """Four branches side by side; `widths` in the order of the paper's table, reductions before what they feed."""

    def __init__(self, num_in: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        one, three_reduce, three, five_reduce, five, projection = widths
        self.one = conv_relu(num_in, one, 1)
        self.three = nn.Sequential(conv_relu(num_in, three_reduce, 1), conv_relu(three_reduce, three, 3, padding=1))
        self.five = nn.Sequential(conv_relu(num_in, five_reduce, 1), conv_relu(five_reduce, five, 5, padding=2))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, padding=1), conv_relu(num_in, projection, 1))
        self.num_out = one + three + five + projection

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], dim=1)


class AuxiliaryHead(nn.Module):
    def __init__(self, num_in: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AvgPool2d(5, 3, ceil_mode=True),
            conv_relu(num_in, 128, 1),
            nn.Flatten(),
            nn.Linear(2048, 1024),
            nn.ReLU(inplace=True),
            nn.Dropout(0.7),
            nn.Linear(1024, 1000),
        )

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), labels)


class GoogLeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv_relu(3, 64, 7, stride=2, padding=3),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.LocalResponseNorm(5),
            conv_relu(64, 64, 1),
            conv_relu(64, 192, 3, padding=1),
            nn.LocalResponseNorm(5),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.stage3 = nn.Sequential(
            Inception(192, (64, 96, 128, 16, 32, 32)),
            Inception(256, (128, 128, 192, 32, 96, 64)),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.inception4a = Inception(480, (192, 96, 208, 16, 48, 64))
        self.head1 = AuxiliaryHead(512)
        self.inception4bcd = nn.Sequential(
            Inception(512, (160, 112, 224, 24, 64, 64)),
            Inception(512, (128, 128, 256, 24, 64, 64)),
            Inception(512, (112, 144, 288, 32, 64, 64)),
        )
        self.head2 = AuxiliaryHead(528)
        self.top = nn.Sequential(
            Inception(528, (256, 160, 320, 32, 128, 128)),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            Inception(832, (256, 160, 320, 32, 128, 128)),
            Inception(832, (384, 192, 384, 48, 128, 128)),
            nn.AvgPool2d(7),
            nn.Dropout(0.4),
            nn.Flatten(),
            nn.Linear(1024, 1000),
        )

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        after_4a = self.inception4a(self.stage3(self.stem(images)))
        after_4d = self.inception4bcd(after_4a)
        loss = F.cross_entropy(self.top(after_4d), labels)
        return loss + 0.3 * self.head1(after_4a, labels) + 0.3 * self.head2(after_4d, labels)


def conv_norm(num_in: int, num_out: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(num_in, num_out, kernel, stride, padding, bias=False), nn.BatchNorm2d(num_out))


class Bottleneck(nn.Module):
    """The form of the paper: a stage's stride sits in its first 1×1 convolution."""

    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        num_out = 4 * width
        self.shortcut = conv_norm(num_in, num_out, 1, stride) if num_in != num_out else nn.Identity()
        self.residual = nn.Sequential(
            conv_norm(num_in, width, 1, stride),
            nn.ReLU(inplace=True),
            conv_norm(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
            conv_norm(width, num_out, 1),
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.shortcut(x) + self.residual(x))


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            conv_norm(3, 64, 7, stride=2, padding=3),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        ]
        num_in = 64
        for width, num_units, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for index in range(num_units):
                layers.append(Bottleneck(num_in, width, stride if index == 0 else 1))
                num_in = 4 * width
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1))
        self.classifier = nn.Linear(num_in, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.classifier(self.features(images).flatten(1)), labels)


NETS: dict[str, Callable[[], nn.Module]] = {
    "lenet": LeNet,
    "cifar10_quick": Cifar10Quick,
    "alexnet": AlexNet,
    "googlenet": GoogLeNet,
    "resnet50": ResNet50,
}


def build(name: str) -> nn.Module:
    """A freshly initialised net of the zoo, with `forward(images, labels) -> loss`."""
    return NETS[name]()
