"""SSD's arithmetic written as loops over Python numbers, to hold the layers against."""

from __future__ import annotations

import math


def overlap(a, b, edge=0.0):
    """Intersection over union of two boxes x1 y1 x2 y2."""
    width = min(a[2], b[2]) - max(a[0], b[0]) + edge
    height = min(a[3], b[3]) - max(a[1], b[1]) + edge
    if width <= 0 or height <= 0:
        return 0.0

    def area(box):
        w, h = box[2] - box[0] + edge, box[3] - box[1] + edge
        return w * h if w > 0 and h > 0 else 0.0

    return width * height / (area(a) + area(b) - width * height)


def decode(code, prior, variance, kind):
    w, h = prior[2] - prior[0], prior[3] - prior[1]
    d = [c * v for c, v in zip(code, variance, strict=True)]
    if kind == "CORNER":
        return [p + x for p, x in zip(prior, d, strict=True)]
    if kind == "CORNER_SIZE":
        return [prior[0] + d[0] * w, prior[1] + d[1] * h, prior[2] + d[2] * w, prior[3] + d[3] * h]
    cx, cy = (prior[0] + prior[2]) / 2 + d[0] * w, (prior[1] + prior[3]) / 2 + d[1] * h
    bw, bh = w * math.exp(d[2]), h * math.exp(d[3])
    return [cx - bw / 2, cy - bh / 2, cx + bw / 2, cy + bh / 2]


def encode(box, prior, variance, kind):
    w, h = prior[2] - prior[0], prior[3] - prior[1]
    if kind == "CORNER":
        d = [b - p for b, p in zip(box, prior, strict=True)]
    elif kind == "CORNER_SIZE":
        d = [(box[0] - prior[0]) / w, (box[1] - prior[1]) / h, (box[2] - prior[2]) / w, (box[3] - prior[3]) / h]
    else:
        d = [
            ((box[0] + box[2]) / 2 - (prior[0] + prior[2]) / 2) / w,
            ((box[1] + box[3]) / 2 - (prior[1] + prior[3]) / 2) / h,
            math.log((box[2] - box[0]) / w),
            math.log((box[3] - box[1]) / h),
        ]
    return [x / v for x, v in zip(d, variance, strict=True)]


def suppress(boxes, threshold, eta=1.0, edge=0.0):
    """Indices of the boxes that stay, given best first."""
    kept = []
    for i, box in enumerate(boxes):
        if all(overlap(box, boxes[k], edge) <= threshold for k in kept):
            kept.append(i)
            if eta < 1 and threshold > 0.5:
                threshold *= eta
    return kept


def match(boxes, truths, threshold):
    """For each box the index of its truth or -1; threshold None: the bipartite part only."""
    found = [-1] * len(boxes)
    table = [[overlap(box, truth) for truth in truths] for box in boxes]
    free = set(range(len(truths)))
    while free:
        best = max(
            ((table[i][j], -i, -j) for i in range(len(boxes)) if found[i] == -1 for j in free if table[i][j] > 1e-6),
            default=None,
        )
        if best is None:
            break
        found[-best[1]] = -best[2]
        free.discard(-best[2])
    if threshold is not None:
        for i, row in enumerate(table):
            if found[i] == -1:
                best_overlap = max(row, default=0)
                if best_overlap > 1e-6 and best_overlap >= threshold:
                    found[i] = row.index(best_overlap)
    return found, [max(row, default=0) for row in table]


def softmax_loss(scores, label):
    return math.log(sum(math.exp(s) for s in scores)) - scores[label]


def logistic_loss(scores, label):
    """`label` None: of no class."""
    return sum(math.log(1 + math.exp(s)) - (s if c == label else 0) for c, s in enumerate(scores))


def smooth_l1(d):
    return 0.5 * d * d if abs(d) < 1 else abs(d) - 0.5
