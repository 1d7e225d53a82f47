"""Classes and labels: what the layers that compare a prediction with class labels share.

A prediction of any shape is seen as rows: its axes before the class axis, the classes, and the axes behind it.

    rows     outer × classes, or outer × classes × inner where positions follow the class axis,
             or (outer · inner) × classes where memory holds the classes of one position together (channels_last)
    labels   one per outer · inner position, in any shape with that count (N, N × 1, N × 1 × H × W, N × H × W, …)

Labels arrive as floats and are cut to integers as Caffe does (3.0 and 3.7 are class 3). A label outside 0 … classes-1
is an error; the one called `ignore_label` may lie anywhere and takes its position out of the computation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, count_of, text_of


@dataclass(frozen=True, slots=True)
class ClassLabels:
    """Labels laid out to gather from rows: outer × 1 (× inner)."""

    index: Tensor  # int64, every one a valid class; 0 where ignored
    ignored: Tensor | None  # bool; None where there is no ignore_label


def rows_of(x: Tensor, axis: int) -> Tensor:
    """The prediction as rows; a view where memory allows."""
    if x.dim() == 2 and axis == 1:
        return x
    num_classes, inner = x.shape[axis], count_of(x.shape, axis + 1)
    if inner == 1:
        return x.reshape(count_of(x.shape, 0, axis), num_classes)
    if axis == 1 and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return x.permute(0, 2, 3, 1).reshape(count_of(x.shape) // num_classes, num_classes)
    return x.reshape(count_of(x.shape, 0, axis), num_classes, inner)


def from_rows(rows: Tensor, shape: torch.Size, axis: int) -> Tensor:
    """Rows back in the shape of the prediction they came from."""
    if rows.shape == shape:
        return rows
    if rows.dim() == 2 and count_of(shape, axis + 1) != 1:
        return rows.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
    return rows.view(shape)


def rows_of_samples(x: Tensor) -> Tensor:
    """Everything behind the first axis as classes: N × K."""
    return x.reshape(x.shape[0], count_of(x.shape, 1))


def softmax_rows(rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax over the classes.

    For fewer classes than a vector register has lanes, torch's kernel for the last axis computes one number at a
    time; on the transposed rows it computes many samples at once (5 times faster for 256 × 10 on a CPU).
    """
    if rows.dim() == 2 and rows.shape[1] < 16 and rows.device.type == "cpu":
        return torch.softmax(rows.t(), 0, dtype=dtype).t().contiguous()
    return torch.softmax(rows, 1, dtype=dtype)


def require_label_per_position(layer: Layer, prediction: Shape, label: Shape, axis: int) -> None:
    """Caffe compares counts only: N × C × H × W wants N · H · W labels in whatever shape."""
    num_positions = count_of(prediction, 0, axis) * count_of(prediction, axis + 1)
    if count_of(label) != num_positions:
        raise layer.error(
            f"needs one label per prediction: {num_positions} for {text_of(prediction)} with classes along "
            f"axis {axis}, got {count_of(label)} ({text_of(label)})"
        )


def class_labels(layer: Layer, bottom: Tensor, rows: Tensor, ignore_label: int | None = None) -> ClassLabels:
    """Reads a label bottom for a prediction given as rows."""
    index = layer.labels(bottom).reshape(rows.shape[0], 1, *rows.shape[2:])
    ignored = None
    if ignore_label is not None:
        ignored = index == ignore_label
        index = index * ~ignored
    _require_in_range(layer, index, bottom, rows.shape[1])
    return ClassLabels(index, ignored)


def _require_in_range(layer: Layer, index: Tensor, bottom: Tensor, num_classes: int) -> None:
    if not index.numel():
        return
    if index.is_cuda or torch.compiler.is_compiling():
        # Looking at the values here would stop the host until the GPU has caught up, or cut a compiled graph in two.
        in_range = ((index >= 0) & (index < num_classes)).all()
        torch._assert_async(in_range, str(layer.error(f"a label is outside 0 to {num_classes - 1}")))
        return
    low, high = torch.aminmax(index)
    if int(low) < 0 or int(high) >= num_classes:
        position = int(((index < 0) | (index >= num_classes)).flatten().nonzero()[0])
        label = bottom.detach().reshape(-1)[position].item()
        raise layer.error(
            f"label {label:g} (number {position} of {index.numel()}) is outside 0 to {num_classes - 1}: "
            f"the prediction has {num_classes} classes"
        )
