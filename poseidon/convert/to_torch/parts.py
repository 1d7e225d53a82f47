"""Helpers that go into an exported model as text, where torch has no single call for what Caffe computes.

Each one must stand alone: it may use torch, nn and F, and the others listed in NEEDS. Written as models are written by
hand, without annotations.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


# -- pooling and normalisation --------------------------------------------------------------------------------------
def lrn_within_channel(x, size, alpha, beta):
    """Local response normalisation over a square in each plane; zeros beyond the edges count."""
    energy = F.avg_pool2d(x * x, size, stride=1, padding=size // 2)
    return x * (1 + alpha * energy) ** -beta


def average_clipped(x, kernel, stride, margins, heights, widths):
    """Averages of windows that hang over the edge: divided by `heights` and `widths`, of each row and column."""
    sums = F.avg_pool2d(F.pad(x, margins), kernel, stride, divisor_override=1)
    return sums / (x.new_tensor(heights)[:, None] * x.new_tensor(widths))


def stochastic_pool(x, kernel, stride, margins):
    """What stochastic pooling gives on average: sum of squares / sum, 0 where the sum is not positive."""
    padded = F.pad(x, margins)
    total = F.avg_pool2d(padded, kernel, stride)
    squares = F.avg_pool2d(padded * padded, kernel, stride)
    positive = total > 0
    return torch.where(positive, squares / torch.where(positive, total, 1.0), 0.0)


def max_pool_with_mask(x, kernel, stride, margins):
    """Maxima and where they stand in their plane, -1 for a window that lies wholly outside."""
    lowest = torch.finfo(torch.float32).min
    left, right, above, _ = margins
    y, index = F.max_pool2d(F.pad(x, margins, value=lowest), kernel, stride, return_indices=True)
    height, width = x.shape[2], x.shape[3]
    row = torch.div(index, left + width + right, rounding_mode="floor") - above
    column = index % (left + width + right) - left
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return y, torch.where(inside, row * width + column, -1).float()


def normalize_batch(x, eps, weight=None, bias=None):
    """Batch normalisation with the batch's own mean and variance."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean = x.mean(axes, keepdim=True)
    y = (x - mean) / ((x - mean).square().mean(axes, keepdim=True) + eps).sqrt()
    along = (-1,) + (1,) * (x.dim() - 2)
    return y if weight is None else y * weight.view(along) + bias.view(along)


def mean_variance(x, axes, eps):
    """(x - mean) / (standard deviation + eps)"""
    centred = x - x.mean(axes, keepdim=True)
    return centred / (centred.square().mean(axes, keepdim=True).sqrt() + eps)


# -- windows over many axes -----------------------------------------------------------------------------------------
def convolve(x, weight, bias, stride, padding, dilation, groups):
    """Convolution over any number of axes: tap by tap along the first, until torch can do the rest."""
    num_axes = len(stride)
    if num_axes == 1:
        return F.conv1d(x, weight, bias, stride, padding, dilation, groups)
    x = F.pad(x, [0, 0] * (num_axes - 1) + [padding[0], padding[0]])
    taps = weight.shape[2]
    num_outputs = (x.shape[2] - dilation[0] * (taps - 1) - 1) // stride[0] + 1
    parts = []
    for tap in range(taps):
        start = tap * dilation[0]
        rows = x[:, :, start : start + (num_outputs - 1) * stride[0] + 1 : stride[0]].movedim(2, 1).flatten(0, 1)
        parts.append(convolve(rows, weight[:, :, tap], None, stride[1:], padding[1:], dilation[1:], groups))
    y = torch.stack(parts).sum(0).unflatten(0, (-1, num_outputs)).movedim(1, 2)
    return y if bias is None else y + bias.view(-1, *[1] * num_axes)


def deconvolve(x, weight, bias, stride, padding, dilation, groups):
    """Transposed convolution over any number of axes: every tap along the first lands at its place."""
    num_axes = len(stride)
    if num_axes == 1:
        return F.conv_transpose1d(x, weight, bias, stride, padding, 0, groups, dilation)
    size, taps = x.shape[2], weight.shape[2]
    full = stride[0] * (size - 1) + dilation[0] * (taps - 1) + 1
    rows = x.movedim(2, 1).flatten(0, 1)
    parts = []
    for tap in range(taps):
        part = deconvolve(rows, weight[:, :, tap], None, stride[1:], padding[1:], dilation[1:], groups)
        parts.append(part.unflatten(0, (-1, size)).movedim(1, 2))
    y = x.new_zeros(parts[0].shape[0], parts[0].shape[1], full, *parts[0].shape[3:])
    for tap, part in enumerate(parts):
        start = tap * dilation[0]
        y[:, :, start : start + stride[0] * (size - 1) + 1 : stride[0]] += part
    y = y[:, :, padding[0] : full - padding[0]]
    return y if bias is None else y + bias.view(-1, *[1] * num_axes)


# -- moving pixels --------------------------------------------------------------------------------------------------
def reorg(x, stride, reverse):
    """Pixels moved into channels as darknet moves them, or back."""
    num, channels, height, width = x.shape
    depth = channels // stride**2
    if reverse:
        blocks = x.reshape(num, stride, stride, depth, height, width)
        return blocks.permute(0, 3, 4, 1, 5, 2).reshape(num, depth, height * stride, width * stride)
    planes = x.reshape(num, depth, height, stride, width, stride).permute(0, 3, 5, 1, 2, 4)
    return planes.reshape(num, channels * stride**2, height // stride, width // stride)


def unpool(x, mask, size):
    """Values put where max pooling found them; of several at one place the last stays."""
    index = mask.long().flatten(2)
    order = torch.arange(index.shape[2]).expand_as(index)
    winner = torch.full((*x.shape[:2], size[0] * size[1]), -1).scatter_reduce(2, index, order, "amax")
    return torch.where(winner >= 0, x.flatten(2).gather(2, winner.clamp(min=0)), 0.0).unflatten(2, size)


# -- choosing -------------------------------------------------------------------------------------------------------
def largest(x, top_k, dim):
    """Positions of the largest entries, largest first, of equal ones the later first."""
    order = x.flip(dim).sort(dim=dim, descending=True, stable=True).indices
    return x.shape[dim] - 1 - order.narrow(dim, 0, top_k)


def largest_per_sample(x, top_k):
    """Positions of the largest entries of each sample, and their values: N x 2 x top_k."""
    rows = x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    index = largest(rows, top_k, 1)
    return torch.stack([index.float(), rows.gather(1, index)], 1)


def selected(x, selector):
    """The samples whose selector is not zero."""
    return x[selector.flatten() != 0]


# -- sequences ------------------------------------------------------------------------------------------------------
class LSTM(nn.Module):
    """Long short-term memory over steps x streams; where cont is 0, a stream starts again from nothing."""

    def __init__(self, num_inputs, num_outputs, num_static=0):
        super().__init__()
        self.inputs = nn.Linear(num_inputs, 4 * num_outputs)
        self.static = nn.Linear(num_static, 4 * num_outputs, bias=False) if num_static else nn.Identity()
        self.hidden = nn.Linear(num_outputs, 4 * num_outputs, bias=False)

    def forward(self, x, cont, static=None, h=None, c=None):
        gates = self.inputs(x.flatten(2))
        if static is not None:
            gates = gates + self.static(static.flatten(1))
        if h is None:
            h = c = x.new_zeros(1, x.shape[1], self.hidden.in_features)
        h, c, steps = h[0], c[0], []
        for gate, keep in zip(gates, cont.unsqueeze(2), strict=True):
            i, f, o, g = (gate + self.hidden(keep * h)).chunk(4, 1)
            c = torch.sigmoid(f) * (keep * c) + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            steps.append(h)
        return torch.stack(steps), h.unsqueeze(0), c.unsqueeze(0)


class RNN(nn.Module):
    """A plain recurrent layer over steps x streams; where cont is 0, a stream starts again from nothing."""

    def __init__(self, num_inputs, num_outputs, num_static=0):
        super().__init__()
        self.inputs = nn.Linear(num_inputs, num_outputs)
        self.static = nn.Linear(num_static, num_outputs, bias=False) if num_static else nn.Identity()
        self.hidden = nn.Linear(num_outputs, num_outputs, bias=False)
        self.outputs = nn.Linear(num_outputs, num_outputs)

    def forward(self, x, cont, static=None, h=None):
        sums = self.inputs(x.flatten(2))
        if static is not None:
            sums = sums + self.static(static.flatten(1))
        h = x.new_zeros(x.shape[1], self.hidden.in_features) if h is None else h[0]
        steps = []
        for step, keep in zip(sums, cont.unsqueeze(2), strict=True):
            h = torch.tanh(step + self.hidden(keep * h))
            steps.append(h)
        return torch.tanh(self.outputs(torch.stack(steps))), h.unsqueeze(0)


def lstm_unit(c, gates, cont):
    """One step of an LSTM from gates that are already summed up."""
    i, f, o, g = gates.chunk(4, 2)
    c = torch.sigmoid(f) * cont.unsqueeze(2) * c + torch.sigmoid(i) * torch.tanh(g)
    return c, torch.sigmoid(o) * torch.tanh(c)


# -- losses ---------------------------------------------------------------------------------------------------------
def class_rows(x, dim):
    """A prediction as positions x classes."""
    return x.movedim(dim, -1).reshape(-1, x.shape[dim])


def valid_labels(label, ignore_label):
    """Class numbers (0 where ignored) and which of them count."""
    index = label.long().reshape(-1, 1)
    counted = torch.ones_like(index) if ignore_label is None else (index != ignore_label).long()
    return index * counted, counted


def softmax_loss(x, label, dim, ignore_label=None, least=1.17549435e-38):
    """Minus the sum of log probabilities of the labels, and how many count."""
    index, counted = valid_labels(label, ignore_label)
    chosen = F.softmax(class_rows(x, dim), 1).gather(1, index).clamp(min=least)
    return -(chosen.log() * counted).sum(), counted.sum()


def infogain_loss(x, label, matrix, dim, ignore_label=None):
    """The softmax loss with a matrix row of weights for every label, and how many labels count."""
    index, counted = valid_labels(label, ignore_label)
    rows = F.softmax(class_rows(x, dim), 1)
    gains = matrix.reshape(rows.shape[1], -1)[index[:, 0]] * rows.clamp(min=1e-20).log()
    return -(gains * counted).sum(), counted.sum()


def hinge_loss(x, label, power):
    """One-versus-all hinge loss per sample."""
    rows = x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    is_label = F.one_hot(label.long().reshape(-1), rows.shape[1]).bool()
    return F.relu(1 + torch.where(is_label, -rows, rows)).pow(power).sum() / max(len(x), 1)


def sigmoid_loss(x, target, ignore_label=None):
    """Sum of logistic losses of independent yes/no predictions, and how many count."""
    target = target.reshape(x.shape)
    counted = torch.ones_like(x) if ignore_label is None else (target.long() != ignore_label).float()
    costs = F.binary_cross_entropy_with_logits(x, target, reduction="none")
    return torch.where(counted > 0, costs, 0.0).sum(), counted.sum()


def contrastive_loss(a, b, similar, margin, legacy):
    """Pulls similar pairs together and pushes others a margin apart."""
    squared = (a.flatten(1) - b.flatten(1)).square().sum(1)
    gap = F.relu(margin - (squared if legacy else squared.sqrt()))
    pushed = gap if legacy else gap.square()
    return torch.where(similar.long().reshape(-1) != 0, squared, pushed).sum() / (2 * max(len(a), 1))


def label_accuracy(x, label, dim, top_k, ignore_label=None):
    """Share of labels among the top_k best scores; equal scores count against a label. Then the same per class."""
    rows = class_rows(x, dim)
    index, counted = valid_labels(label, ignore_label)
    below = (rows < rows.gather(1, index)).sum(1, keepdim=True)
    right = (below >= rows.shape[1] - top_k).long() * counted
    member = F.one_hot(index[:, 0], rows.shape[1])
    per_class = (member * right).sum(0) / (member * counted).sum(0).clamp(min=1)
    return right.sum() / counted.sum().clamp(min=1), per_class


NEEDS: dict[object, tuple[Any, ...]] = {
    largest_per_sample: (largest,),
    softmax_loss: (class_rows, valid_labels),
    infogain_loss: (class_rows, valid_labels),
    label_accuracy: (class_rows, valid_labels),
}
