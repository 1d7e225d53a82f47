"""Boxes as the detection layers have them: x₁ y₁ x₂ y₂ along the last axis.

Two habits of measuring: SSD's boxes are fractions of the image and x₂ − x₁ wide; those of Faster R-CNN are pixels, both
ends included, and x₂ − x₁ + 1 wide (`edge` 0 or 1). Box codes are SSD's, relative to a prior box p with variances v,
for centre c and width and height s of the box, and likewise of p:

    CORNER        (corner − corner of p) / v
    CENTER_SIZE   (c − c of p) / s of p / v,  log(s / s of p) / v
    CORNER_SIZE   (corner − corner of p) / s of p / v
"""

from __future__ import annotations

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, count_of, text_of
from poseidon.spec import caffe_pb2

Code = caffe_pb2.PriorBoxParameter


def sizes(boxes: Tensor, edge: float = 0) -> Tensor:
    """Width and height."""
    return boxes[..., 2:] - boxes[..., :2] + edge


def areas(boxes: Tensor, edge: float = 0) -> Tensor:
    """0 for a box whose corners are the wrong way round."""
    return sizes(boxes, edge).clamp(min=0).prod(-1)


def overlaps(a: Tensor, b: Tensor, edge: float = 0) -> Tensor:
    """Intersection over union of boxes … × 4, broadcast against each other; 0 where they do not meet."""
    low = torch.maximum(a[..., :2], b[..., :2])
    high = torch.minimum(a[..., 2:], b[..., 2:])
    shared = (high - low + edge).clamp(min=0).prod(-1)
    union = areas(a, edge) + areas(b, edge) - shared
    return torch.where(shared > 0, shared / union, torch.zeros_like(shared))


def suppressed(boxes: Tensor, threshold: float, *, limit: int = -1, eta: float = 1.0, edge: float = 0) -> list[int]:
    """Non-maximum suppression: of boxes M × 4, best first, those that overlap no better one by more than `threshold`.

    `limit` ends it after so many (-1: no end). With eta below 1 the threshold shrinks by that factor after each box
    kept, while it is above 0.5.
    """
    boxes = boxes.detach().cpu()
    kept: list[int] = []
    # A shrinking threshold applies to candidates in turn, so that what was spared earlier can fall later.
    worst = torch.zeros(len(boxes), dtype=boxes.dtype)
    for i in range(len(boxes)):
        if len(kept) == limit:
            break
        if worst[i] > threshold:
            continue
        kept.append(i)
        torch.maximum(worst[i + 1 :], overlaps(boxes[i], boxes[i + 1 :], edge), out=worst[i + 1 :])
        if eta < 1 and threshold > 0.5:
            threshold *= eta
    return kept


def decoded(offsets: Tensor, priors: Tensor, variances: Tensor | None, code: int) -> Tensor:
    """Boxes from their codes; without variances the codes carry them already."""
    if variances is not None:
        offsets = offsets * variances
    if code == Code.CORNER:
        return priors + offsets
    scale = sizes(priors)
    if code == Code.CORNER_SIZE:
        return priors + offsets * torch.cat((scale, scale), -1)
    centre = offsets[..., :2] * scale + (priors[..., :2] + priors[..., 2:]) / 2
    half = offsets[..., 2:].exp() * scale / 2
    return torch.cat((centre - half, centre + half), -1)


def encoded(boxes: Tensor, priors: Tensor, variances: Tensor | None, code: int) -> Tensor:
    """The codes of boxes: `decoded` the other way round."""
    scale = sizes(priors)
    if code == Code.CORNER:
        offsets = boxes - priors
    elif code == Code.CORNER_SIZE:
        offsets = (boxes - priors) / torch.cat((scale, scale), -1)
    else:
        centre = (boxes[..., :2] + boxes[..., 2:] - priors[..., :2] - priors[..., 2:]) / 2
        offsets = torch.cat((centre / scale, (sizes(boxes) / scale).log()), -1)
    return offsets if variances is None else offsets / variances


def check_predictions(layer: Layer, shapes: tuple[Shape, Shape, Shape], num_code_sets: int, num_classes: int) -> None:
    """Raises unless there are codes and scores, of as many images, for each prior: one set of codes for all classes,
    or one for each."""
    codes, scores, priors = shapes
    if len(priors) < 3 or priors[1] != 2 or count_of(priors, 2) % 4:
        raise layer.error(f"needs priors 1 x 2 x (4 per box) as of PriorBox, got {text_of(priors)}")
    num_priors = count_of(priors, 2) // 4
    for what, shape, each in (("box codes", codes, 4 * num_code_sets), ("class scores", scores, num_classes)):
        if not shape or count_of(shape, 1) != num_priors * each:
            raise layer.error(
                f"needs {num_priors * each} {what} per image, {each} for each of {num_priors} priors, "
                f"got {text_of(shape)}"
            )
    if codes[0] != scores[0]:
        raise layer.error(
            f"needs box codes and class scores of as many images, got {text_of(codes)} and {text_of(scores)}"
        )
