"""The nets of the zoo, one family per file; `MODELS` has all of them by the name of their folder."""

from __future__ import annotations

from models.model import Model
from models.zoo import alexnet, cifar10, googlenet, inception_v3, lenet, resnet, vgg

FAMILIES = (lenet, cifar10, alexnet, googlenet, vgg, resnet, inception_v3)
MODELS: dict[str, Model] = {name: model for family in FAMILIES for name, model in family.MODELS.items()}
