"""DetectionOutput (SSD): detections out of what was predicted around prior boxes.

    bottoms   box codes N × (P · L · 4), class scores N × (P · classes), priors 1 × 2 × (P · 4) of PriorBox
              L: 1 with share_location, else one set of codes per class
    top       1 × 1 × D × 7: image, class, score, x₁, y₁, x₂, y₂, corners as fractions of the image

For every image and class but the background: scores above confidence_threshold, the nms_param.top_k best of them,
non-maximum suppression (nms_threshold, eta). Then the keep_top_k best over all classes of an image. Rows come by image,
then by class, best first. Without any detection D is N and each row is the image's number and six times −1. D is known
only in forward; until then there is room for one. Nothing flows back.

SSD can also write and draw its results; here they are in the top, and asking for files or pictures is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, exactly
from poseidon.net.layers.boxes import check_predictions, decoded, suppressed
from poseidon.net.registry import register


@dataclass(frozen=True, slots=True)
class _Found:
    """The detections of one class in one image, best first."""

    label: int
    scores: Tensor
    boxes: Tensor


@register("DetectionOutput")
class DetectionOutput(Layer):
    bottoms = exactly(3)
    unforced_bottoms = frozenset({0, 1, 2})

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.detection_output_param
        if options.num_classes < 1:
            raise self.error("detection_output_param.num_classes is missing: give the number of classes")
        if options.nms_param.nms_threshold < 0:
            raise self.error(f"nms_threshold must be at least 0, got {options.nms_param.nms_threshold:g}")
        if not 0 < options.nms_param.eta <= 1:
            raise self.error(f"nms_param.eta must be above 0 and at most 1, got {options.nms_param.eta:g}")
        if options.save_output_param.output_directory or options.save_file:
            raise self.error("writes no files: take the detections from its top, and leave output_directory out")
        if options.visualize:
            raise self.error("draws no pictures: take the detections from its top, and leave visualize out")

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        codes, scores, priors = bottom_shapes
        options = self.spec.detection_output_param
        check_predictions(self, (codes, scores, priors), self._num_code_sets(), options.num_classes)
        return [(1, 1, 1, 7)]

    def _num_code_sets(self) -> int:
        options = self.spec.detection_output_param
        return 1 if options.share_location else options.num_classes

    @torch.no_grad()
    def forward(self, codes: Tensor, scores: Tensor, priors: Tensor) -> Tensor:
        options = self.spec.detection_output_param
        num = codes.shape[0]
        dtype = torch.promote_types(codes.dtype, torch.float32)
        prior, variances = priors.detach().to("cpu", dtype).reshape(2, -1, 1, 4)
        boxes = decoded(
            codes.detach().to("cpu", dtype).reshape(num, len(prior), -1, 4),
            prior,
            None if options.variance_encoded_in_target else variances,
            options.code_type,
        )
        by_class = scores.detach().to("cpu", dtype).reshape(num, len(prior), options.num_classes)
        rows = [
            torch.cat(
                (_column(image, found.scores), _column(found.label, found.scores), found.scores[:, None], found.boxes),
                1,
            )
            for image in range(num)
            for found in self._best(self._of_image(boxes[image], by_class[image]))
            if len(found.scores)
        ]
        if not rows:
            nothing = torch.full((num, 7), -1.0, dtype=dtype)
            nothing[:, 0] = torch.arange(num, dtype=dtype)
            rows = [nothing]
        return torch.cat(rows)[None, None].to(codes.device)

    def _of_image(self, boxes: Tensor, scores: Tensor) -> list[_Found]:
        options = self.spec.detection_output_param
        threshold = options.confidence_threshold if options.HasField("confidence_threshold") else -torch.inf
        top_k = options.nms_param.top_k if options.nms_param.HasField("top_k") else -1
        found = []
        for label in range(options.num_classes):
            if label == options.background_label_id:
                continue
            above = (scores[:, label] > threshold).nonzero().flatten()
            order = scores[above, label].sort(descending=True, stable=True).indices
            candidates = above[order if top_k < 0 else order[:top_k]]
            own = boxes[candidates, 0 if options.share_location else label]
            kept = suppressed(own, options.nms_param.nms_threshold, eta=options.nms_param.eta)
            found.append(_Found(label, scores[candidates[kept], label], own[kept]))
        return found

    def _best(self, found: list[_Found]) -> list[_Found]:
        """The keep_top_k best of an image; of equal scores those of the lower class stay."""
        keep = self.spec.detection_output_param.keep_top_k
        if keep < 0 or sum(len(part.scores) for part in found) <= keep:
            return found
        pooled = torch.cat([part.scores for part in found])
        stays = torch.zeros(len(pooled), dtype=torch.bool)
        stays[pooled.sort(descending=True, stable=True).indices[:keep]] = True
        chosen = stays.split([len(part.scores) for part in found])
        return [_Found(p.label, p.scores[mask], p.boxes[mask]) for p, mask in zip(found, chosen, strict=True)]


def _column(value: int, like: Tensor) -> Tensor:
    return torch.full((len(like), 1), float(value), dtype=like.dtype)
