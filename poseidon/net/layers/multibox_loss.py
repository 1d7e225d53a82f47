"""MultiBoxLoss (SSD): the loss of what is predicted around prior boxes, against ground truth of any number of boxes.

    bottoms   box codes N × (P · L · 4), class scores N × (P · classes), priors 1 × 2 × (P · 4) of PriorBox, and the
              truth, G × 8 values: image (−1: no more), class, instance, x₁, y₁, x₂, y₂ (fractions), difficult
    top       (loc_weight · localisation + confidence) / divisor

    localisation   Σ over matched boxes of smooth L1 (or ½ square, L2) of code − code of the truth
    confidence     Σ of softmax cross-entropy (or sigmoid cross-entropy, LOGISTIC) over matched boxes and background;
                   LOGISTIC without mining wants no class of background boxes, not even the background's
    divisor        the number of matches (VALID), of priors (FULL), of images (BATCH_SIZE) or 1 (NONE), at least 1

Boxes are matched as in box_matching.py: the priors themselves, or the predicted boxes (use_prior_for_matching false).
Background are all boxes without a match (mining_type NONE), or as many as neg_pos_ratio times the matches of their
image (MAX_NEGATIVE): those with the largest confidence loss among boxes that overlap no truth by neg_overlap or more.
An image without truth has no background then. HARD_EXAMPLE mining and bp_inside are refused.

The truth is a blob like any other: an HDF5Data, Input or Python layer gives it. SSD's AnnotatedData is not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Shape, exactly, text_of
from poseidon.net.layers.box_matching import NO_MATCH, hardest, matches
from poseidon.net.layers.boxes import check_predictions, decoded, encoded, overlaps
from poseidon.net.layers.loss import LossLayer
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2

Options = caffe_pb2.MultiBoxLossParameter


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Of all images: for each code set and box the row of its truth or a negative number (N × P × L), and which boxes
    count as background (N × P)."""

    truth: Tensor
    background: Tensor


@register("MultiBoxLoss")
class MultiBoxLoss(LossLayer):
    bottoms = exactly(4)
    unforced_bottoms = frozenset({2, 3})

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.multibox_loss_param
        if options.num_classes < 1:
            raise self.error("multibox_loss_param.num_classes is missing: give the number of classes")
        if options.background_label_id >= options.num_classes:
            raise self.error(
                f"background_label_id must be below num_classes {options.num_classes}, "
                f"got {options.background_label_id}"
            )
        if self._mining() == Options.HARD_EXAMPLE:
            raise self.error("does no HARD_EXAMPLE mining; set mining_type to MAX_NEGATIVE or NONE")
        if options.bp_inside:
            raise self.error("knows no bp_inside; leave it out")
        if options.HasField("do_neg_mining") and options.do_neg_mining != (self._mining() != Options.NONE):
            raise self.error("do_neg_mining and mining_type contradict each other; leave do_neg_mining out")
        if self._mining() != Options.NONE and not options.share_location:
            raise self.error("mines negatives only with share_location; set mining_type to NONE")
        if not self.spec.propagate_down:  # as SSD has it: what made the priors may well have a gradient otherwise
            self.spec.propagate_down.extend([True, True, False, False])

    def _mining(self) -> int:
        options = self.spec.multibox_loss_param
        if options.HasField("do_neg_mining") and not options.HasField("mining_type"):
            return Options.MAX_NEGATIVE if options.do_neg_mining else Options.NONE
        return options.mining_type

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        codes, scores, priors, truth = bottom_shapes
        options = self.spec.multibox_loss_param
        num_sets = 1 if options.share_location else options.num_classes
        check_predictions(self, (codes, scores, priors), num_sets, options.num_classes)
        if not truth or truth[-1] != 8:
            raise self.error(f"needs ground truth of 8 values per box, 1 x 1 x G x 8, got {text_of(truth)}")
        return [()]

    def forward(self, codes: Tensor, scores: Tensor, priors: Tensor, truth: Tensor) -> Tensor:
        options = self.spec.multibox_loss_param
        num = codes.shape[0]
        prior, variances = self.constant(priors, "priors").reshape(2, -1, 1, 4)
        codes = codes.reshape(num, len(prior), -1, 4)
        scores = scores.reshape(num, len(prior), options.num_classes)
        truths = self._truths(self.constant(truth, "ground truth").reshape(-1, 8).cpu(), num)
        chosen = self._choose(codes.detach(), scores.detach(), prior, variances, truths)
        located = self._localisation(codes, prior, variances, truths, chosen.truth)
        total = options.loc_weight * located + self._confidence(scores, truths, chosen)
        divisor = self.divisor(num, num * len(prior), chosen.truth <= NO_MATCH)
        return total / (divisor.to(total) if isinstance(divisor, Tensor) else divisor)

    def _localisation(self, codes: Tensor, prior: Tensor, variances: Tensor, truths: Tensor, match: Tensor) -> Tensor:
        options = self.spec.multibox_loss_param
        image, box, code_set = (match > NO_MATCH).nonzero(as_tuple=True)
        own = truths[match[image, box, code_set], 3:7].to(codes)
        predicted, spread = codes[image, box, code_set], variances[box, 0]
        within_code = None if options.encode_variance_in_target else spread
        target = encoded(own, prior[box, 0], within_code, options.code_type)
        if options.encode_variance_in_target:
            target, predicted = target / spread, predicted / spread
        if options.loc_loss_type == Options.L2:
            return F.mse_loss(predicted, target, reduction="sum") / 2
        return F.smooth_l1_loss(predicted, target, reduction="sum")

    def _confidence(self, scores: Tensor, truths: Tensor, chosen: _Chosen) -> Tensor:
        options = self.spec.multibox_loss_param
        is_matched = chosen.truth > NO_MATCH
        # A box that answers for truths of several classes is scored for the last of them.
        last = (is_matched * torch.arange(1, is_matched.shape[2] + 1)).argmax(2, keepdim=True)
        rows = chosen.truth.gather(2, last)[is_matched.any(2)]
        matched = self._each_loss(scores[is_matched.any(2)], self._labels(truths[rows.flatten(), 1].long()))
        rest = scores[chosen.background]
        if options.conf_loss_type == Options.LOGISTIC and self._mining() == Options.NONE:
            return matched.sum() + F.softplus(rest).sum()  # of no class at all, not even the background's
        background = torch.full((len(rest),), options.background_label_id)
        return matched.sum() + self._each_loss(rest, background).sum()

    def _labels(self, labels: Tensor) -> Tensor:
        options = self.spec.multibox_loss_param
        if options.map_object_to_agnostic:
            return torch.full_like(labels, options.background_label_id + 1)
        return labels

    def _truths(self, rows: Tensor, num: int) -> Tensor:
        """The truth that counts, in its order."""
        options = self.spec.multibox_loss_param
        ended = (rows[:, 0] == -1).nonzero().flatten()
        rows = rows[: int(ended[0])] if len(ended) else rows
        if not options.use_difficult_gt:
            rows = rows[rows[:, 7] == 0]
        labels, images = rows[:, 1], rows[:, 0]
        if len(rows) and not 0 <= float(images.min()) <= float(images.max()) < num:
            raise self.error(f"ground truth names images {images.min():g} to {images.max():g}, expected 0 to {num - 1}")
        wrong = (labels < 0) | (labels >= options.num_classes) | (labels == options.background_label_id)
        if bool(wrong.any()):
            raise self.error(
                f"ground truth has class {float(labels[wrong][0]):g}, expected 0 to {options.num_classes - 1} and not "
                f"the background's, {options.background_label_id}"
            )
        return rows

    @torch.no_grad()
    def _choose(self, codes: Tensor, scores: Tensor, prior: Tensor, variances: Tensor, truths: Tensor) -> _Chosen:
        options = self.spec.multibox_loss_param
        num, num_priors, num_sets = codes.shape[:3]
        threshold = options.overlap_threshold if options.match_type == Options.PER_PREDICTION else None
        found = torch.full((num, num_priors, num_sets), NO_MATCH, dtype=torch.long)
        mines = self._mining() != Options.NONE
        background = torch.full((num, num_priors), not mines)
        for image in range(num):
            rows = (truths[:, 0] == image).nonzero().flatten()
            if not len(rows):
                continue
            for code_set in range(num_sets):
                boxes = prior[:, 0]
                if not options.use_prior_for_matching:
                    spread = None if options.encode_variance_in_target else variances
                    boxes = decoded(codes[image], prior, spread, options.code_type)[:, code_set]
                boxes = boxes.cpu()
                # Predicted boxes of a class compete for its truths only; priors for all, and each class takes its own.
                relevant = rows
                if num_sets > 1 and not options.use_prior_for_matching:
                    relevant = rows[truths[rows, 1] == code_set]
                shared = overlaps(boxes[:, None], truths[relevant, 3:7].to(boxes)[None])
                outside = (boxes < 0).any(1) | (boxes > 1).any(1) if options.ignore_cross_boundary_bbox else None
                match = matches(shared, threshold, outside)
                own = torch.where(match > NO_MATCH, relevant[match.clamp(min=0)], match) if len(relevant) else match
                if num_sets > 1:
                    own = torch.where((own > NO_MATCH) & (truths[own.clamp(min=0), 1] != code_set), NO_MATCH, own)
                found[image, :, code_set] = own
                if mines:
                    nearest = shared.max(1).values
                    background[image] = self._mined(scores[image].cpu(), own, nearest, truths)
        background &= ~(found > NO_MATCH).any(2)
        return _Chosen(found, background)

    def _mined(self, scores: Tensor, match: Tensor, nearest: Tensor, truths: Tensor) -> Tensor:
        """The boxes of an image that count as background, as a mask."""
        options = self.spec.multibox_loss_param
        labels = torch.full((len(match),), options.background_label_id)
        is_matched = match > NO_MATCH
        labels[is_matched] = self._labels(truths[match[is_matched], 1].long())
        losses = self._each_loss(scores, labels)
        eligible = (match == NO_MATCH) & (nearest < options.neg_overlap)
        chosen = hardest(losses, eligible, int(int(is_matched.sum()) * options.neg_pos_ratio))
        mask = torch.zeros(len(match), dtype=torch.bool)
        mask[chosen] = True
        return mask

    def _each_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The confidence loss of each box, M × classes against M labels."""
        options = self.spec.multibox_loss_param
        labels = labels.to(scores.device)
        if options.conf_loss_type == Options.SOFTMAX:
            return F.cross_entropy(scores, labels, reduction="none")
        wanted = F.one_hot(labels, options.num_classes).to(scores)
        return F.binary_cross_entropy_with_logits(scores, wanted, reduction="none").sum(1)
