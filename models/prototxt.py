"""A net as nested dicts, and its text.

A layer is a dict that mirrors Caffe's `LayerParameter`: nested dicts are messages, lists are repeated fields, `Word` is
an enum value. The builders below cover the layers of the model zoo, with their tops named after the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ONE_LINE = 110  # a message whose text fits into this many characters stays on one line

Message = dict[str, Any]
Layers = list[Message]


class Word(str):
    """An enum value: written without quotes."""


def scalar_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Word):
        return str(value)
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def field_lines(message: Message, indent: str = "") -> list[str]:
    """One entry per field, in the order of the dict; a list is a repeated field."""
    lines: list[str] = []
    for name, values in message.items():
        for value in values if isinstance(values, list) else [values]:
            if not isinstance(value, dict):
                lines.append(f"{indent}{name}: {scalar_text(value)}")
                continue
            body = field_lines(value)
            joined = f"{indent}{name} {{ {' '.join(body)} }}"
            if name != "layer" and len(joined) <= ONE_LINE:
                lines.append(joined)
            else:
                lines += [f"{indent}{name} {{", *field_lines(value, indent + "  "), f"{indent}}}"]
    return lines


def layer(kind: str, name: str, bottoms: Sequence[str], tops: Sequence[str], **fields: Any) -> Message:
    return {"name": name, "type": kind, "bottom": list(bottoms), "top": list(tops), **fields}


def phase_only(phase: str) -> Message:
    return {"phase": Word(phase)}


def filler(kind: str, **fields: Any) -> Message:
    return {"type": kind, **fields}


XAVIER, MSRA, ZERO = filler("xavier"), filler("msra"), filler("constant")


@dataclass(frozen=True, slots=True)
class Style:
    """How a model's weights start and learn: fillers, and Caffe's habit of a doubled rate for undecayed biases."""

    weight: Message
    bias: Message | None  # None: the layer has no bias
    decays: bool = True  # False: decay multipliers are left unsaid, as in the two small nets

    def param(self) -> Layers:
        rates = [{"lr_mult": 1, "decay_mult": 1}, {"lr_mult": 2, "decay_mult": 0}]
        if not self.decays:
            rates = [{"lr_mult": 1}, {"lr_mult": 2}]
        return rates if self.bias is not None else rates[:1]

    def fillers(self) -> Message:
        bias = {"bias_term": False} if self.bias is None else {"bias_filler": self.bias}
        return {"weight_filler": self.weight, **bias}


def conv(name: str, bottom: str, num_output: int, style: Style, **shape: int) -> Message:
    settings = {"num_output": num_output, **shape, **style.fillers()}
    return layer("Convolution", name, [bottom], [name], param=style.param(), convolution_param=settings)


def inner_product(name: str, bottom: str, num_output: int, style: Style) -> Message:
    settings = {"num_output": num_output, **style.fillers()}
    return layer("InnerProduct", name, [bottom], [name], param=style.param(), inner_product_param=settings)


def pool(method: str, name: str, bottom: str, **shape: int) -> Message:
    return layer("Pooling", name, [bottom], [name], pooling_param={"pool": Word(method), **shape})


def relu(name: str, blob: str) -> Message:
    return layer("ReLU", name, [blob], [blob])


def dropout(name: str, blob: str, ratio: float) -> Message:
    return layer("Dropout", name, [blob], [blob], dropout_param={"dropout_ratio": ratio})


def lrn(name: str, bottom: str) -> Message:
    return layer("LRN", name, [bottom], [name], lrn_param={"local_size": 5, "alpha": 0.0001, "beta": 0.75})


def softmax_loss(name: str, scores: str, top: str, weight: float | None = None) -> Message:
    loss_weight = {} if weight is None else {"loss_weight": weight}
    return layer("SoftmaxWithLoss", name, [scores, "label"], [top], **loss_weight)


def accuracy(name: str, scores: str, top_k: int | None = None) -> Message:
    settings = {} if top_k is None else {"accuracy_param": {"top_k": top_k}}
    return layer("Accuracy", name, [scores, "label"], [name], include=phase_only("TEST"), **settings)
