"""Which prior box answers for which ground truth, and which of the rest count as background: SSD's rules.

Matching, with overlaps of P boxes and G truths, where overlaps up to 1e-6 count as none:

    BIPARTITE        the best pair of all belongs together, then the best pair of the rest, …: one box per truth
    PER_PREDICTION   and then every box left goes to the truth it overlaps most, if by at least overlap_threshold

Of equal overlaps the first box, and of its truths the first, is taken.
"""

from __future__ import annotations

import torch
from torch import Tensor

NO_MATCH = -1
OUTSIDE = -2
_LEAST_OVERLAP = 1e-6


def matches(overlaps: Tensor, threshold: float | None, outside: Tensor | None = None) -> Tensor:
    """For each of P boxes its truth, or NO_MATCH. `threshold` None: bipartite only. Boxes marked `outside` (bool, P)
    take no part, and get OUTSIDE."""
    num_boxes, num_truths = overlaps.shape
    found = torch.full((num_boxes,), NO_MATCH, dtype=torch.long)
    open_pairs = torch.where(overlaps > _LEAST_OVERLAP, overlaps, torch.zeros_like(overlaps))
    if outside is not None:
        found[outside] = OUTSIDE
        open_pairs[outside] = 0
    rest = open_pairs.clone()
    for _ in range(num_truths if num_boxes else 0):
        best = int(rest.argmax())
        box, truth = divmod(best, num_truths)
        if rest[box, truth] <= 0:
            break
        found[box] = truth
        rest[box] = 0
        rest[:, truth] = 0
    if threshold is None or not num_truths:
        return found
    best_overlap, best_truth = open_pairs.max(1)
    fits = (found == NO_MATCH) & (best_overlap >= threshold) & (best_overlap > 0)
    return torch.where(fits, best_truth, found)


def hardest(losses: Tensor, eligible: Tensor, num_wanted: int) -> Tensor:
    """Indices, ascending, of the eligible boxes with the largest losses."""
    candidates = eligible.nonzero().flatten()
    order = losses[candidates].sort(descending=True, stable=True).indices
    return candidates[order[:num_wanted]].sort().values
