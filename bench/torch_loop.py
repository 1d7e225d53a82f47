"""The training loop one writes in PyTorch around a Caffe database: Dataset, DataLoader, torch.optim.SGD, a scheduler.

    loop = TorchLoop(net, LmdbImages(path, recipe), Schedule(...), batch=64, num_loaders=1)
    loop.step(10)

Records are read in the order of their keys, round and round, as a Data layer does. Loaders are processes, started at
once and kept from one round to the next, each with its own handle on the database; with none the loop itself reads.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import lmdb
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from poseidon.spec import caffe_pb2


@dataclass(frozen=True, slots=True)
class Recipe:
    """What happens to an image: decoded if it is encoded, cropped at random and flipped, (x − means) · scale."""

    crop_size: int = 0
    mirror: bool = False
    means: tuple[float, ...] = ()
    scale: float = 1.0

    def __call__(self, datum: caffe_pb2.Datum) -> Tensor:
        if datum.encoded:
            image = cv2.imdecode(np.frombuffer(datum.data, np.uint8), cv2.IMREAD_COLOR)
        else:
            planes = np.frombuffer(datum.data, np.uint8).reshape(datum.channels, datum.height, datum.width)
            image = planes.transpose(1, 2, 0)
        if self.crop_size:
            top = random.randrange(image.shape[0] - self.crop_size + 1)
            left = random.randrange(image.shape[1] - self.crop_size + 1)
            image = image[top : top + self.crop_size, left : left + self.crop_size]
        if self.mirror and random.random() < 0.5:
            image = image[:, ::-1]
        tensor = torch.from_numpy(np.array(image.transpose(2, 0, 1), np.float32, order="C"))
        if self.means:
            tensor -= torch.tensor(self.means).view(-1, 1, 1)
        return tensor if self.scale == 1 else tensor.mul_(self.scale)


class LmdbImages(Dataset[tuple[Tensor, int]]):
    """The Datums of an LMDB whose keys are numbers of eight digits."""

    def __init__(self, path: str, recipe: Recipe) -> None:
        self._path = path
        self._recipe = recipe
        self._environment: lmdb.Environment | None = None
        with self._open() as environment:
            self._length = environment.stat()["entries"]

    def _open(self) -> lmdb.Environment:
        return lmdb.open(self._path, readonly=True, lock=False, readahead=False)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._environment is None:  # a handle must not travel into a loader's process
            self._environment = self._open()
            self._transaction = self._environment.begin()
        datum = caffe_pb2.Datum.FromString(self._transaction.get(b"%08d" % index))
        return self._recipe(datum), datum.label


@dataclass(frozen=True, slots=True)
class Schedule:
    """SGD's settings. Biases learn at twice the rate, as in Caffe's models, and may be spared weight decay."""

    base_lr: float
    momentum: float
    weight_decay: float
    decays_biases: bool
    factor: Callable[[int], float]


class TorchLoop:
    def __init__(self, net: nn.Module, images: LmdbImages, schedule: Schedule, batch: int, num_loaders: int) -> None:
        self.net = net
        self._loader = DataLoader(
            images, batch, num_workers=num_loaders, persistent_workers=num_loaders > 0, drop_last=True
        )
        weights = [value for name, value in net.named_parameters() if name.endswith("weight")]
        biases = [value for name, value in net.named_parameters() if name.endswith("bias")]
        bias_decay = schedule.weight_decay if schedule.decays_biases else 0.0
        self._optimizer = torch.optim.SGD(
            [{"params": weights}, {"params": biases, "lr": 2 * schedule.base_lr, "weight_decay": bias_decay}],
            lr=schedule.base_lr,
            momentum=schedule.momentum,
            weight_decay=schedule.weight_decay,
        )
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self._optimizer, schedule.factor)
        self._round = iter(self._loader)

    def step(self, num_iterations: int) -> list[Tensor]:
        """Trains; returns the losses."""
        losses = []
        for _ in range(num_iterations):
            images, labels = self._next_batch()
            self._optimizer.zero_grad()
            loss = self.net(images, labels)
            loss.backward()
            self._optimizer.step()
            self._scheduler.step()
            losses.append(loss.detach())
        return losses

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        try:
            return next(self._round)
        except StopIteration:
            self._round = iter(self._loader)
            return next(self._round)
