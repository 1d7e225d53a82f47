"""Proposal (Faster R-CNN): the regions worth looking at, from the scores and offsets of anchors.

    bottoms   scores 1 × 2A × H × W (A backgrounds, then A objects), offsets 1 × 4A × H × W, image 1 × 3 or more:
              height, width and how much it was scaled
    tops      regions R × 5: 0, x₁, y₁, x₂, y₂ in pixels; optionally their R scores

Anchors stand feat_stride pixels apart, ratio by ratio and for each scale by scale (`anchors`). An anchor with centre c
and size s and offsets d becomes the box with centre c + d·s and size s·exp(d), cut to the image. Boxes narrower or
lower than min_size times the image's scale are left out, the pre_nms_topn best stay, non-maximum suppression at
nms_thresh follows, and of its result the first post_nms_topn are given. Ratios and scales are 0.5, 1, 2 and 8, 16, 32
if there are none. If nothing is left R is 0.

This is what py-faster-rcnn's `rpn.proposal_layer` computes, which is a Python layer there. One image at a time. R is
known only in forward; until then there is room for one, as in Caffe's ports. Nothing flows back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, between, count_of, exactly, text_of
from poseidon.net.layers.boxes import sizes, suppressed
from poseidon.net.registry import register

_RATIOS = (0.5, 1.0, 2.0)
_SCALES = (8.0, 16.0, 32.0)


@register("Proposal")
class Proposal(Layer):
    bottoms = exactly(3)
    tops = between(1, 2)
    unforced_bottoms = frozenset({0, 1, 2})

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.proposal_param
        for name in ("feat_stride", "base_size", "post_nms_topn"):
            if getattr(options, name) < 1:
                raise self.error(f"proposal_param.{name} must be at least 1, got {getattr(options, name)}")
        smallest = min([*options.ratio, *options.scale], default=1)
        if not smallest > 0:
            raise self.error(f"ratios and scales must be above 0, got {smallest:g}")

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        scores, offsets, image = bottom_shapes
        num_anchors = len(self._anchors())
        for what, shape, each in (("scores", scores, 2), ("offsets", offsets, 4)):
            if len(shape) != 4 or shape[:2] != (1, each * num_anchors):
                raise self.error(
                    f"takes {what} 1 x {each * num_anchors} x H x W, {each} for each of {num_anchors} anchors, "
                    f"got {text_of(shape)}"
                )
        if scores[2:] != offsets[2:]:
            raise self.error(f"needs scores and offsets of one size, got {text_of(scores)} and {text_of(offsets)}")
        if count_of(image) < 3:
            raise self.error(f"needs the image's height, width and scale as third bottom, got {text_of(image)}")
        return [(1, 5), (1,)][: self.num_tops]

    def _anchors(self) -> Tensor:
        options = self.spec.proposal_param
        return anchors(options.base_size, list(options.ratio) or _RATIOS, list(options.scale) or _SCALES)

    @torch.no_grad()
    def forward(self, scores: Tensor, offsets: Tensor, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        options = self.spec.proposal_param
        dtype = torch.promote_types(scores.dtype, torch.float32)
        height, width, scale = image.detach().flatten()[:3].tolist()
        base = self._anchors().to(dtype)
        # Positions first, anchors last: so the layers that follow in trained nets have always seen them.
        objects = scores.detach().to("cpu", dtype)[0, len(base) :].permute(1, 2, 0).flatten()
        moves = offsets.detach().to("cpu", dtype)[0].unflatten(0, (len(base), 4)).permute(2, 3, 0, 1)
        boxes = _moved(self._placed(base, *scores.shape[2:]), moves).reshape(-1, 4)
        limits = torch.tensor([width, height, width, height], dtype=dtype) - 1
        boxes = torch.minimum(boxes.clamp(min=0), limits.clamp(min=0))
        large = (sizes(boxes, 1) >= options.min_size * scale).all(-1).nonzero().flatten()
        order = objects[large].sort(descending=True, stable=True).indices
        best = large[order[: options.pre_nms_topn] if options.pre_nms_topn else order]
        kept = best[suppressed(boxes[best], options.nms_thresh, limit=options.post_nms_topn, edge=1)]
        regions = torch.cat((torch.zeros(len(kept), 1, dtype=dtype), boxes[kept]), 1).to(scores.device)
        return regions if self.num_tops == 1 else (regions, objects[kept].to(scores.device))

    def _placed(self, base: Tensor, height: int, width: int) -> Tensor:
        """The anchors of every position, H × W × A × 4."""
        stride = self.spec.proposal_param.feat_stride
        y, x = (torch.arange(count, dtype=base.dtype) * stride for count in (height, width))
        corner = torch.stack((x.expand(height, -1), y[:, None].expand(-1, width)), -1)
        return base + torch.cat((corner, corner), -1)[:, :, None]


def anchors(base_size: int, ratios: Sequence[float], scales: Sequence[float]) -> Tensor:
    """A square of base_size at the origin, reshaped to each ratio height / width, then enlarged by each scale.

    The sides of a reshaped square are whole pixels, rounded with halves to even; all keep its centre.
    """
    centre = (base_size - 1) / 2
    found = []
    for ratio in ratios:
        width = round((base_size**2 / ratio) ** 0.5)
        height = round(width * ratio)
        for scale in scales:
            half = (width * scale - 1) / 2, (height * scale - 1) / 2
            found.append([centre - half[0], centre - half[1], centre + half[0], centre + half[1]])
    return torch.tensor(found, dtype=torch.float64)


def _moved(boxes: Tensor, moves: Tensor) -> Tensor:
    """Boxes shifted by a part of their size and grown exponentially."""
    size = sizes(boxes, 1)
    centre = boxes[..., :2] + size / 2 + moves[..., :2] * size
    half = moves[..., 2:].exp() * size / 2
    return torch.cat((centre - half, centre + half), -1)
