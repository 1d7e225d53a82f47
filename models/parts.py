"""What the zoo's nets are made of: layers added to a NetSpec under a name, with the weights' fillers and rates.

Every builder takes the spec, the layer's name and the blob it reads, and returns the blob it makes. The spec has `data`
and `label` before a net's own layers are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from caffe.net_spec import NetSpec, Top
from caffe.net_spec import layers as L
from caffe.net_spec import params as P

Fields = dict[str, Any]

TEST_ONLY: Fields = {"phase": 1}


def filler(kind: str, **fields: float) -> Fields:
    return {"type": kind, **fields}


XAVIER, MSRA, ZERO = filler("xavier"), filler("msra"), filler("constant")


@dataclass(frozen=True, slots=True)
class Style:
    """How a layer's weights start and learn: fillers, and Caffe's habit of a doubled rate for undecayed biases."""

    weight: Fields
    bias: Fields | None  # None: the layer has no bias
    decays: bool = True  # False: decay multipliers are left unsaid, as in the small nets
    decay_mult: float = 1  # of the weight

    def fields(self) -> Fields:
        rates: list[Fields] = [{"lr_mult": 1}, {"lr_mult": 2}]
        if self.decays:
            rates = [{"lr_mult": 1, "decay_mult": self.decay_mult}, {"lr_mult": 2, "decay_mult": 0}]
        if self.bias is None:
            return {"param": rates[:1], "weight_filler": self.weight, "bias_term": False}
        return {"param": rates, "weight_filler": self.weight, "bias_filler": self.bias}


def gaussian(std: float, bias: float = 0, **rest: Any) -> Style:
    """Normally distributed weights and a constant bias."""
    return Style(filler("gaussian", std=std), filler("constant", value=bias) if bias else ZERO, **rest)


def conv(n: NetSpec, name: str, bottom: Top, num_output: int, style: Style, **shape: int) -> Top:
    n[name] = L.Convolution(bottom, num_output=num_output, **shape, **style.fields())
    return n[name]


def inner_product(n: NetSpec, name: str, bottom: Top, num_output: int, style: Style) -> Top:
    n[name] = L.InnerProduct(bottom, num_output=num_output, **style.fields())
    return n[name]


def max_pool(n: NetSpec, name: str, bottom: Top, **shape: int) -> Top:
    n[name] = L.Pooling(bottom, pool=P.Pooling.MAX, **shape)
    return n[name]


def average_pool(n: NetSpec, name: str, bottom: Top, **shape: int) -> Top:
    n[name] = L.Pooling(bottom, pool=P.Pooling.AVE, **shape)
    return n[name]


def global_average(n: NetSpec, name: str, bottom: Top) -> Top:
    n[name] = L.Pooling(bottom, pool=P.Pooling.AVE, global_pooling=True)
    return n[name]


def relu(n: NetSpec, name: str, bottom: Top) -> Top:
    n[name] = L.ReLU(bottom, in_place=True)
    return n[name]


def dropout(n: NetSpec, name: str, bottom: Top, ratio: float) -> Top:
    n[name] = L.Dropout(bottom, dropout_ratio=ratio, in_place=True)
    return n[name]


def lrn(n: NetSpec, name: str, bottom: Top, **fields: Any) -> Top:
    n[name] = L.LRN(bottom, **{"local_size": 5, "alpha": 0.0001, "beta": 0.75, **fields})
    return n[name]


def concat(n: NetSpec, name: str, *parts: Top) -> Top:
    n[name] = L.Concat(*parts)
    return n[name]


def batch_norm(n: NetSpec, norm: str, scale: str, bottom: Top, **fields: float) -> Top:
    """Normalised and scaled in place, as the two layers Caffe has for it."""
    n[norm] = L.BatchNorm(bottom, in_place=True, **fields)
    n[scale] = L.Scale(n[norm], bias_term=True, in_place=True)
    return n[scale]


def softmax_loss(n: NetSpec, name: str, scores: Top, weight: float | None = None) -> None:
    n[name] = L.SoftmaxWithLoss(scores, n.label, **({} if weight is None else {"loss_weight": weight}))


def accuracy(n: NetSpec, name: str, scores: Top, top_k: int | None = None) -> None:
    n[name] = L.Accuracy(scores, n.label, include=TEST_ONLY, **({} if top_k is None else {"top_k": top_k}))
