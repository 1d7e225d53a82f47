"""Model: what surrounds a net of the zoo, that is where its images come from and how it is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from caffe.net_spec import NetSpec
from models.parts import Fields

IMAGENET = {"TRAIN": "data/ilsvrc12_train_lmdb", "TEST": "data/ilsvrc12_val_lmdb"}
IMAGENET_MEANS = [104, 117, 123]  # blue, green, red
CIFAR10 = {"TRAIN": "data/cifar10_train_lmdb", "TEST": "data/cifar10_test_lmdb"}


@dataclass(frozen=True, slots=True)
class Model:
    """A net and its surroundings.

    body        adds the layers from `data` and `label` to the losses to a spec
    sources, batches    per phase
    mirrors     whether training images are flipped at random
    schedule    fields of the solver, in the order in which they are written
    note        a comment on the schedule
    """

    body: Callable[[NetSpec], None]
    title: str
    image_shape: tuple[int, int, int]
    sources: dict[str, str]
    batches: dict[str, int]
    transform: Fields
    mirrors: bool
    schedule: Fields
    note: str = ""


def momentum_sgd(base_lr: float, weight_decay: float, policy: str, **fields: Any) -> Fields:
    return {"base_lr": base_lr, "lr_policy": policy, **fields, "momentum": 0.9, "weight_decay": weight_decay}


def scoring(num_batches: int, interval: int, *, at_once: bool = True) -> Fields:
    """How often the solver tests, and on how many batches; `at_once`: before the first iteration too."""
    found: Fields = {"test_iter": num_batches, "test_interval": interval}
    return found if at_once else {**found, "test_initialization": False}


def telling(display: int, max_iter: int, snapshot: int, *, averages: bool = False) -> Fields:
    """When it tells the loss, ends, and snapshots; `averages`: told losses are means since the last telling."""
    average = {"average_loss": display} if averages else {}
    return {"display": display, **average, "max_iter": max_iter, "snapshot": snapshot}
