"""Losses and Accuracy, for nets that keep them."""

from __future__ import annotations

from poseidon.convert.to_torch import parts
from poseidon.convert.to_torch.writing import Writing, arguments, number
from poseidon.net.layer import count_of
from poseidon.net.layers.infogain_loss import InfogainLoss
from poseidon.net.layers.loss import LOG_THRESHOLD, LossLayer, Mode
from poseidon.spec import caffe_pb2


def softmax_with_loss(w: Writing) -> list[str]:
    assert isinstance(w.layer, LossLayer)
    axis = w.spec.softmax_param.axis % w.rank
    call = f"{w.part(parts.softmax_loss)}({arguments(*w.inputs, axis, ignore_label=w.layer.ignore_label)})"
    return [_normalised(w, call, axis), f"F.softmax({w.x}, dim={axis})"][: len(w.tops)]


def infogain_loss(w: Writing) -> list[str]:
    layer = w.layer
    assert isinstance(layer, InfogainLoss)
    axis = w.spec.infogain_loss_param.axis % w.rank
    if layer.matrix is None:
        matrix = w.inputs[2]
    else:
        matrix = w.parameter("matrix", layer.matrix.cpu().float().numpy(), learned=False)
    given = arguments(*w.inputs[:2], matrix, axis, ignore_label=layer.ignore_label)
    call = f"{w.part(parts.infogain_loss)}({given})"
    return [_normalised(w, call, axis), f"F.softmax({w.x}, dim={axis})"][: len(w.tops)]


def multinomial_logistic_loss(w: Writing) -> str:
    rows = f"{w.x}.flatten(1)" if w.rank > 1 else f"{w.x}.unsqueeze(1)"
    chosen = f"{rows}.gather(1, {w.inputs[1]}.long().reshape(-1, 1))"
    return f"-{chosen}.clamp(min={LOG_THRESHOLD}).log().sum() / len({w.x})"


def euclidean_loss(w: Writing) -> str:
    a, b = w.inputs
    b = b if w.bottoms[0] == w.bottoms[1] else f"{b}.reshape({a}.shape)"
    return f"({a} - {b}).square().sum() / (2 * len({a}))"


def hinge_loss(w: Writing) -> str:
    power = 2 if w.spec.hinge_loss_param.norm == caffe_pb2.HingeLossParameter.L2 else 1
    return f"{w.part(parts.hinge_loss)}({w.x}, {w.inputs[1]}, {power})"


def sigmoid_cross_entropy_loss(w: Writing) -> str:
    assert isinstance(w.layer, LossLayer)
    call = f"{w.part(parts.sigmoid_loss)}({arguments(*w.inputs, ignore_label=w.layer.ignore_label)})"
    return _normalised(w, call, 1)


def contrastive_loss(w: Writing) -> str:
    options = w.spec.contrastive_loss_param
    given = arguments(*w.inputs, number(options.margin), bool(options.legacy_version))
    return f"{w.part(parts.contrastive_loss)}({given})"


def accuracy(w: Writing) -> str:
    options = w.spec.accuracy_param
    ignore_label = options.ignore_label if options.HasField("ignore_label") else None
    given = arguments(*w.inputs, options.axis % w.rank, options.top_k, ignore_label=ignore_label)
    call = f"{w.part(parts.label_accuracy)}({given})"
    return call if len(w.tops) == 2 else f"{call}[0]"


def _normalised(w: Writing, call: str, axis: int) -> str:
    """`call` gives a total and how many labels count."""
    layer = w.layer
    assert isinstance(layer, LossLayer)
    if layer.normalization == Mode.NONE:
        return f"{call}[0]"
    if layer.normalization == Mode.VALID and layer.ignore_label is not None:
        total = w.source.variable(f"{layer.name} total")
        count = w.source.variable(f"{layer.name} count")
        w.source.lines.append(f"{total}, {count} = {call}")
        return f"{total} / {count}.clamp(min=1)"
    if layer.normalization == Mode.BATCH_SIZE:
        if any(isinstance(dim, str) for dim in w.bottoms[0][:axis]):
            return f"{call}[0] / {w.x}.shape[:{axis}].numel()"
        return f"{call}[0] / {max(count_of(w.shape[:axis]), 1)}"
    return f"{call}[0] / {w.inputs[1]}.numel()"
