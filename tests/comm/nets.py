"""Small nets with everything that is hard to exchange exactly, and the batches they are fed with.

A net's inputs are drawn for the whole batch of all workers; worker r of P takes every P-th sample from the r-th on, as
its random draws do. One reads records itself, in the same way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tests.data.make import datum, write_lmdb

Inputs = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Case:
    """`text(n)` is the net for a batch of n, `draw(rng, n)` such a batch, whose samples lie along `batch_axis`."""

    name: str
    text: Callable[[int], str]
    draw: Callable[[np.random.RandomState, int], Inputs]
    settings: str = ""
    batch: int = 2
    batch_axis: int = 0

    def __str__(self) -> str:
        return self.name

    def batch_of(self, clock: int, size: int) -> dict[str, Tensor]:
        """The clock-th batch of `size` workers together."""
        drawn = self.draw(np.random.RandomState(1000 + clock), self.batch * size)
        return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in drawn.items()}

    def share_of(self, clock: int, rank: int, size: int) -> dict[str, Tensor]:
        """One worker's part of it."""
        own = (slice(None),) * self.batch_axis + (slice(rank, None, size),)
        return {name: value[own].contiguous() for name, value in self.batch_of(clock, size).items()}


def _input(name: str, *shape: int) -> str:
    dims = " ".join(f"dim: {extent}" for extent in shape)
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}'


def _fc(name: str, bottom: str, top: str, outputs: int, *, params: str = "", options: str = "") -> str:
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{top}" {params} inner_product_param '
        f'{{ num_output: {outputs} weight_filler {{ type: "xavier" }} {options} }} }}'
    )


def _conv(name: str, bottom: str, top: str, outputs: int, *, params: str = "", pad: int = 0) -> str:
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{top}" {params} convolution_param '
        f'{{ num_output: {outputs} kernel_size: 3 pad: {pad} weight_filler {{ type: "xavier" }} }} }}'
    )


def _layer(kind: str, name: str, bottom: str, top: str, options: str = "") -> str:
    return f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{top}" {options} }}'


def _loss(kind: str, *bottoms: str, options: str = "") -> str:
    given = " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
    return f'layer {{ name: "loss" type: "{kind}" {given} top: "loss" {options} }}'


def _normal(rng: np.random.RandomState, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def _classes(rng: np.random.RandomState, number: int, *shape: int) -> np.ndarray:
    return rng.randint(number, size=shape).astype(np.float64)


# -- fully connected, with dropout and a transposed weight ------------------------------------------------------------
def _mlp(n: int) -> str:
    return "\n".join(
        [
            _input("x", n, 6),
            _input("t", n, 3),
            _fc("fc1", "x", "h", 7, params="param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }"),
            _layer("TanH", "tanh", "h", "a"),
            _layer("Dropout", "drop", "a", "d"),
            _fc("fc2", "d", "y", 3, options="transpose: true"),
            _loss("EuclideanLoss", "y", "t"),
        ]
    )


MLP = Case("mlp", _mlp, lambda rng, n: {"x": _normal(rng, n, 6), "t": _normal(rng, n, 3)})
CLIPPED = Case("clipped", _mlp, MLP.draw, "iter_size: 2 clip_gradients: 0.3")


# -- like LeNet -------------------------------------------------------------------------------------------------------
def _lenet(n: int) -> str:
    return "\n".join(
        [
            _input("x", n, 1, 10, 10),
            _input("label", n),
            _conv("conv1", "x", "c1", 3),
            _layer("Pooling", "pool1", "c1", "p1", "pooling_param { kernel_size: 2 stride: 2 }"),
            _conv("conv2", "p1", "c2", 4),
            _fc("ip1", "c2", "h", 9),
            _layer("ReLU", "relu1", "h", "h"),
            _fc("ip2", "h", "y", 5),
            _loss("SoftmaxWithLoss", "y", "label"),
        ]
    )


LENET = Case("lenet", _lenet, lambda rng, n: {"x": _normal(rng, n, 1, 10, 10), "label": _classes(rng, 5, n)})


# -- weights shared by two towers, biases too -------------------------------------------------------------------------
def _siamese(n: int) -> str:
    def tower(end: str) -> list[str]:
        return [
            _input(f"x{end}", n, 2, 5, 5),
            _conv(f"conv{end}", f"x{end}", f"c{end}", 3, params='param { name: "cw" } param { name: "cb" lr_mult: 2 }'),
            _layer("TanH", f"tanh{end}", f"c{end}", f"a{end}"),
            _fc(f"fc{end}", f"a{end}", f"y{end}", 4, params='param { name: "fw" } param { name: "fb" }'),
        ]

    loss = _loss("ContrastiveLoss", "y", "y_p", "alike", options="contrastive_loss_param { margin: 2 }")
    return "\n".join([*tower(""), *tower("_p"), _input("alike", n), loss])


SIAMESE = Case(
    "siamese",
    _siamese,
    lambda rng, n: {"x": _normal(rng, n, 2, 5, 5), "x_p": _normal(rng, n, 2, 5, 5), "alike": _classes(rng, 2, n)},
)


# -- a weight shared by two layers of one path with biases of their own; a frozen layer; one that leads to no loss -----
def _tied(n: int) -> str:
    return "\n".join(
        [
            _input("x", n, 5),
            _input("t", n, 5),
            _fc("fc0", "x", "z", 5, params="param { lr_mult: 0 decay_mult: 0 } param { lr_mult: 0 }"),
            _fc("fc1", "z", "h", 5, params='param { name: "w" }'),
            _layer("TanH", "tanh1", "h", "a"),
            _fc("fc2", "a", "g", 5, params='param { name: "w" } param { lr_mult: 3 }'),
            _layer("Scale", "scale", "g", "s", "scale_param { bias_term: true }"),
            _fc("fc3", "g", "y", 5, params="param { lr_mult: 1 } param { lr_mult: 0 }"),
            _fc("aside", "x", "aside", 2, params="param { lr_mult: 1 }"),
            'layer { name: "hush" type: "Silence" bottom: "aside" bottom: "s" }',
            _loss("EuclideanLoss", "y", "t"),
        ]
    )


TIED = Case("tied", _tied, lambda rng, n: {"x": _normal(rng, n, 5), "t": _normal(rng, n, 5)})


# -- labels that do not count, differently many on each worker --------------------------------------------------------
def _ignoring(n: int) -> str:
    return "\n".join(
        [
            _input("x", n, 4),
            _input("label", n),
            _fc("fc1", "x", "h", 11),
            _layer("ReLU", "relu", "h", "r"),
            _fc("fc2", "r", "y", 3),
            _loss("SoftmaxWithLoss", "y", "label", options="loss_param { ignore_label: 1 }"),
        ]
    )


IGNORING = Case("ignoring", _ignoring, lambda rng, n: {"x": _normal(rng, n, 4), "label": _classes(rng, 3, n)}, batch=3)


# -- words: a table of which few rows are read, and a recurrent layer over time × batch --------------------------------
def _words(n: int) -> str:
    return "\n".join(
        [
            _input("word", 3, n),
            _input("cont", 3, n),
            _input("next", 3, n),
            'layer { name: "embed" type: "Embed" bottom: "word" top: "e" embed_param { num_output: 4 input_dim: 17 '
            'weight_filler { type: "uniform" min: -0.5 max: 0.5 } } }',
            'layer { name: "lstm" type: "LSTM" bottom: "e" bottom: "cont" top: "h" recurrent_param { num_output: 5 '
            'weight_filler { type: "uniform" min: -0.3 max: 0.3 } } }',
            _fc("predict", "h", "y", 17, options="axis: 2"),
            _loss("SoftmaxWithLoss", "y", "next", options="softmax_param { axis: 2 }"),
        ]
    )


def _draw_words(rng: np.random.RandomState, n: int) -> Inputs:
    cont = np.ones((3, n))
    cont[0] = 0
    return {"word": _classes(rng, 17, 3, n), "cont": cont, "next": _classes(rng, 17, 3, n)}


WORDS = Case("words", _words, _draw_words, batch_axis=1)


# -- pictures from a database, cropped and mirrored at random ---------------------------------------------------------
_FOLDER = tempfile.TemporaryDirectory(prefix="poseidon-pictures-")  # gone with the process


@cache
def _pictures() -> str:
    """An LMDB of 26 pictures, the same in every process: no number of samples that a test asks for divides it."""
    rng = np.random.RandomState(7)
    pixels = rng.randint(0, 256, (26, 2, 6, 6)).astype(np.uint8)
    return write_lmdb(Path(_FOLDER.name) / "pictures", [datum(own, int(rng.randint(4))) for own in pixels])


def _cropped(n: int) -> str:
    return "\n".join(
        [
            f"""layer {{ name: "data" type: "Data" top: "x" top: "label"
                transform_param {{ crop_size: 4 mirror: true scale: 0.01 }}
                data_param {{ source: "{_pictures()}" batch_size: {n} backend: LMDB }} }}""",
            _conv("conv", "x", "c", 4),
            _layer("TanH", "tanh", "c", "a"),
            _fc("fc", "a", "y", 4),
            _loss("SoftmaxWithLoss", "y", "label"),
        ]
    )


CROPPED = Case("cropped", _cropped, lambda rng, n: {})


# -- a deep one, to watch the order in which things happen -------------------------------------------------------------
def _deep(n: int) -> str:
    layers = [_input("x", n, 2, 4, 4), _input("label", n)]
    top = "x"
    for name in ("conv1", "conv2", "conv3", "conv4", "conv5"):
        layers.append(_conv(name, top, name, 2, pad=1))
        top = name
    for name, outputs in (("fc6", 7), ("fc7", 5), ("fc8", 3)):
        layers.append(_fc(name, top, name, outputs))
        top = name
    return "\n".join([*layers, _loss("SoftmaxWithLoss", top, "label")])


DEEP = Case("deep", _deep, lambda rng, n: {"x": _normal(rng, n, 2, 4, 4), "label": _classes(rng, 3, n)})

CASES = (MLP, LENET, SIAMESE, TIED, CLIPPED, IGNORING, WORDS)
ALL_CASES = (*CASES, CROPPED)  # with the one that cannot be fed from outside
