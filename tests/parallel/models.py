"""The models on which Parallel is held against DistributedDataParallel, small enough to run ten steps at once.

Each comes with batches: `batch(step, rank)` gives the inputs of the forward pass, and `loss` what is minimised. Weights
are drawn by numpy, keyed by the model's name, so that every process has the same ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 4


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[np.random.Generator], tuple[Tensor, ...]]
    find_unused: bool = False
    frozen: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("SGD", "AdamW")

    def model(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        model = self.build().to(dtype)
        draw = np.random.default_rng(zlib.crc32(self.name.encode()))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                fan_in = max(1, parameter[0].numel()) if parameter.dim() > 1 else 4
                values = draw.standard_normal(tuple(parameter.shape)) / np.sqrt(fan_in)
                is_scale = parameter.dim() == 1 and name.endswith("weight")
                parameter.copy_(torch.from_numpy(np.asarray(values)) + (1.0 if is_scale else 0.0))
                if any(part in name for part in self.frozen):
                    parameter.requires_grad_(False)
        return model

    def inputs(self, step: int, rank: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        draw = np.random.default_rng((zlib.crc32(self.name.encode()), step, rank))
        return tuple(t.to(dtype) if t.is_floating_point() else t for t in self.batch(draw))


def _normal(draw: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(draw.standard_normal(shape))


def _numbers(draw: np.random.Generator, most: int, *shape: int) -> Tensor:
    return torch.from_numpy(draw.integers(0, most, shape))


def _pictures(size: int, channels: int = 3) -> Callable[[np.random.Generator], tuple[Tensor, ...]]:
    return lambda draw: (_normal(draw, BATCH, channels, size, size), _numbers(draw, 5, BATCH))


class Classifier(nn.Module):
    """Anything with logits; gives the loss."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, *inputs: Tensor) -> Tensor:
        *features, labels = inputs
        return F.cross_entropy(self.body(*features).flatten(0, -2), labels.flatten())


def mlp() -> nn.Module:
    return Classifier(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 24, bias=False), nn.Linear(24, 5)))


def lenet() -> nn.Module:
    features = [nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return Classifier(nn.Sequential(*features, nn.Linear(32, 20), nn.ReLU(), nn.Linear(20, 5)))


def alexnet() -> nn.Module:
    """AlexNet's five convolutions, two of them in groups, and three fully-connected layers, narrow."""
    layers: list[nn.Module] = [nn.Conv2d(3, 6, 11, 4, 2), nn.ReLU(), nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2)]
    layers += [nn.Conv2d(6, 16, 5, padding=2, groups=2), nn.ReLU(), nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2)]
    layers += [nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1, groups=2), nn.ReLU()]
    layers += [nn.Conv2d(24, 16, 3, padding=1, groups=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    head = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)]
    return Classifier(nn.Sequential(*layers, *head))


def vgg() -> nn.Module:
    """VGG-16's thirteen convolutions and three fully-connected layers, narrow, on 32 × 32 pixels."""
    layers: list[nn.Module] = []
    channels = 3
    for width, number in ((2, 2), (4, 2), (4, 3), (6, 3), (6, 3)):
        for _ in range(number):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(channels, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5)]
    return Classifier(nn.Sequential(*layers, *head))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


def resnet() -> nn.Module:
    """ResNet-18's eight blocks, narrow."""
    widths = [(4, 4, 1), (4, 4, 1), (4, 6, 2), (6, 6, 1), (6, 8, 2), (8, 8, 1), (8, 8, 2), (8, 8, 1)]
    stem = [nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    blocks = [Residual(*width) for width in widths]
    return Classifier(nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x)).mean(1))


class CharModel(nn.Module):
    """Predicts each next character; the output layer may be the embedding's table."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 12)
        self.mix = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12), nn.LayerNorm(12))
        self.out = nn.Linear(12, 40, bias=False)
        if tied:
            self.out.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        return self.out(h.cumsum(1) / 4 + self.mix(h))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(25, 8)
        self.lstm = nn.LSTM(8, 12, num_layers=2, batch_first=True)
        self.out = nn.Linear(12, 25)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embedding(x))[0])


class Recommender(nn.Module):
    """After DLRM: three tables, of which one may give sparse gradients by itself, and two towers."""

    def __init__(self, *, num_users: int = 300, sparse: bool = False) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(num_users, 6, sparse=sparse), nn.Embedding(500, 6)
        self.tags = nn.Embedding(200, 6)
        self.bottom = nn.Sequential(nn.Linear(7, 12), nn.ReLU(), nn.Linear(12, 6))
        self.top = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, dense: Tensor, users: Tensor, items: Tensor, tags: Tensor) -> Tensor:
        found = torch.stack([self.bottom(dense), self.users(users), self.items(items), self.tags(tags).mean(1)], 1)
        pairs = (found @ found.transpose(1, 2)).flatten(1)[:, [1, 2, 3, 6, 7, 11]]
        return self.top(torch.cat([found[:, 0], pairs], 1))


class LoraLinear(nn.Module):
    """A frozen Linear, and beside it a product of two thin ones that learns."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.lora_a = nn.Linear(inputs, rank, bias=False)
        self.lora_b = nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_b(self.lora_a(x))


def lora() -> nn.Module:
    return Classifier(nn.Sequential(LoraLinear(20, 32), nn.GELU(), LoraLinear(32, 16), nn.GELU(), nn.Linear(16, 5)))


class Siamese(nn.Module):
    """The same layers on two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 8))

    def forward(self, one: Tensor, other: Tensor, labels: Tensor) -> Tensor:
        distance = (self.tower(one) - self.tower(other)).square().sum(1)
        return torch.where(labels > 2, distance, F.relu(4 - distance)).mean()


class Branches(nn.Module):
    """Runs one of two branches, by the data; a third never."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.even, self.odd = nn.Linear(16, 16), nn.Linear(16, 16)
        self.never = nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        branch = self.even if int(which.sum()) % 2 == 0 else self.odd
        return self.head(F.relu(branch(F.relu(self.stem(x)))))


def _texts(most: int, length: int) -> Callable[[np.random.Generator], tuple[Tensor, ...]]:
    return lambda draw: (_numbers(draw, most, BATCH, length), _numbers(draw, most, BATCH, length))


def _visits(num_users: int) -> Callable[[np.random.Generator], tuple[Tensor, ...]]:
    return lambda draw: (
        _normal(draw, BATCH, 7), _numbers(draw, num_users, BATCH), _numbers(draw, 500, BATCH),
        _numbers(draw, 200, BATCH, 3), _numbers(draw, 2, BATCH),
    )  # fmt: skip


def _features(width: int) -> Callable[[np.random.Generator], tuple[Tensor, ...]]:
    return lambda draw: (_normal(draw, BATCH, width), _numbers(draw, 5, BATCH))


CASES = (
    Case("mlp", mlp, _features(20)),
    Case("lenet", lenet, _pictures(16, 1)),
    Case("alexnet", alexnet, _pictures(64)),
    Case("vgg", vgg, _pictures(32)),
    Case("resnet", resnet, _pictures(16)),
    Case("encoder", lambda: Classifier(Encoder()), lambda d: (_numbers(d, 30, BATCH, 6), _numbers(d, 5, BATCH))),
    Case("char-tied", lambda: Classifier(CharModel(tied=True)), _texts(40, 7)),
    Case("char", lambda: Classifier(CharModel(tied=False)), _texts(40, 7)),
    Case("lstm", lambda: Classifier(Lstm()), _texts(25, 5)),
    Case("recommender", lambda: Classifier(Recommender()), _visits(300)),
    Case("large-table", lambda: Classifier(Recommender(num_users=50_000)), _visits(50_000)),
    Case(
        "sparse-table",
        lambda: Classifier(Recommender(num_users=50_000, sparse=True)),
        _visits(50_000),
        kinds=("plain SGD", "Adagrad"),
    ),
    Case("lora", lora, _features(20), frozen=("base",)),
    Case(
        "siamese",
        Siamese,
        lambda d: (_normal(d, BATCH, 10), _normal(d, BATCH, 10), _numbers(d, 5, BATCH)),
    ),
    Case(
        "branches",
        lambda: Classifier(Branches()),
        lambda d: (_normal(d, BATCH, 8), _numbers(d, 2, BATCH), _numbers(d, 5, BATCH)),
        find_unused=True,
    ),
)  # fmt: skip
BY_NAME = {case.name: case for case in CASES}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, 0.02, momentum=0.9, weight_decay=1e-3),
    "AdamW": lambda params: torch.optim.AdamW(params, 1e-3, weight_decay=0.01),
    "plain SGD": lambda params: torch.optim.SGD(params, 0.02),
    "Adagrad": lambda params: torch.optim.Adagrad(params, 0.01),
}
