"""The layers of SSD and of Fast and Faster R-CNN, against loops written from their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from tests.net.layers import ssd
from tests.net.layers.build import build


def tensor(array) -> torch.Tensor:
    return torch.as_tensor(np.asarray(array, dtype="f8"))


# -- PriorBox -------------------------------------------------------------------------------------------------------
def prior_layer(options: str, cells=(2, 3), image=(24, 36)):
    text = f'type: "PriorBox" bottom: "m" bottom: "i" top: "y" prior_box_param {{ {options} }}'
    return build(text, (1, 2, *cells), (1, 3, *image))


def priors_of(layer, cells=(2, 3), image=(24, 36)) -> np.ndarray:
    return layer(torch.zeros(1, 2, *cells), torch.zeros(1, 3, *image)).double().numpy()


def test_prior_boxes():
    layer = prior_layer(
        "min_size: 4.9 min_size: 6 max_size: 9 max_size: 12 aspect_ratio: 2 aspect_ratio: 0.5 aspect_ratio: 1 "
        "aspect_ratio: 3 variance: 0.1 variance: 0.2 variance: 0.3 variance: 0.4"
    )
    got = priors_of(layer)
    want = []
    for i in range(2):
        for j in range(3):
            cx, cy = (j + 0.5) * 12, (i + 0.5) * 12
            for low, high in ((4, 9), (6, 12)):
                sides = [(low, low), (math.sqrt(low * high),) * 2]
                for ratio in (2, 1 / 2, 3, 1 / 3):  # 0.5 is 2 turned round and 1 is there already
                    sides.append((low * math.sqrt(ratio), low / math.sqrt(ratio)))
                want += [[(cx - w / 2) / 36, (cy - h / 2) / 24, (cx + w / 2) / 36, (cy + h / 2) / 24] for w, h in sides]
    assert got.shape == (1, 2, len(want) * 4)
    np.testing.assert_allclose(got[0, 0].reshape(-1, 4), want, atol=1e-6)
    np.testing.assert_allclose(got[0, 1].reshape(-1, 4), [[0.1, 0.2, 0.3, 0.4]] * len(want), atol=1e-7)


def test_prior_boxes_of_given_sizes_steps_and_offset():
    layer = prior_layer("min_size: 10 clip: true img_h: 40 img_w: 60 step_h: 20 step_w: 25 offset: 0.2")
    got = priors_of(layer)
    want = [
        np.clip([(cx - 5) / 60, (cy - 5) / 40, (cx + 5) / 60, (cy + 5) / 40], 0, 1)
        for cy in (4, 24)
        for cx in (5, 30, 55)
    ]
    np.testing.assert_allclose(got[0, 0].reshape(-1, 4), want, atol=1e-6)
    np.testing.assert_allclose(got[0, 1], 0.1, atol=1e-7)


# -- DetectionOutput ------------------------------------------------------------------------------------------------
def scene(num: int, num_priors: int, num_classes: int, num_sets: int, seed: int):
    """Random codes, scores, priors and variances."""
    random = np.random.default_rng(seed)
    centre, side = random.uniform(0.2, 0.8, (num_priors, 2)), random.uniform(0.1, 0.4, (num_priors, 2))
    priors = np.concatenate([centre - side / 2, centre + side / 2], 1)
    variances = random.uniform(0.1, 0.3, (num_priors, 4))
    codes = random.standard_normal((num, num_priors, num_sets, 4))
    scores = random.uniform(0, 1, (num, num_priors, num_classes))
    return codes, scores, priors, variances


def bottoms(codes, scores, priors, variances):
    num = len(codes)
    blob = np.stack([priors, variances]).reshape(1, 2, -1)
    return tensor(codes.reshape(num, -1)), tensor(scores.reshape(num, -1)), tensor(blob)


def detection_layer(options: str, *shapes):
    text = 'type: "DetectionOutput" bottom: "c" bottom: "s" bottom: "p" top: "y"'
    return build(f"{text} detection_output_param {{ {options} }}", *shapes)


def detections(codes, scores, priors, variances, *, kind, background, threshold, top_k, nms, eta, keep):
    num, num_priors, num_sets = codes.shape[:3]
    rows = []
    for n in range(num):
        found = []
        for label in range(scores.shape[2]):
            if label == background:
                continue
            candidates = [p for p in range(num_priors) if scores[n, p, label] > threshold]
            candidates.sort(key=lambda p, n=n, label=label: -scores[n, p, label])
            candidates = candidates[:top_k] if top_k >= 0 else candidates
            boxes = [
                ssd.decode(codes[n, p, label if num_sets > 1 else 0], priors[p], variances[p], kind) for p in candidates
            ]
            for k in ssd.suppress(boxes, nms, eta):
                found.append([n, label, scores[n, candidates[k], label], *boxes[k]])
        if 0 <= keep < len(found):
            best = sorted(found, key=lambda row: -row[2])[:keep]
            found = [row for row in found if row in best]
        rows += found
    return rows


@pytest.mark.parametrize("kind", ["CORNER", "CENTER_SIZE", "CORNER_SIZE"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("top_k", "eta", "keep"), [(-1, 1.0, -1), (7, 0.8, 5)])
def test_detections(kind, shared, top_k, eta, keep):
    parts = scene(2, 15, 4, 1 if shared else 4, seed=4)
    options = (
        f"num_classes: 4 share_location: {str(shared).lower()} background_label_id: 1 code_type: {kind} "
        f"keep_top_k: {keep} confidence_threshold: 0.25 nms_param {{ nms_threshold: 0.625 eta: {eta} "
        f"{f'top_k: {top_k}' if top_k >= 0 else ''} }}"
    )
    blobs = bottoms(*parts)
    got = detection_layer(options, *[blob.shape for blob in blobs])(*blobs)
    want = detections(
        *parts, kind=kind, background=1, threshold=0.25, top_k=top_k, nms=0.625, eta=np.float32(eta), keep=keep
    )
    assert len(want) > 4
    assert got.shape == (1, 1, len(want), 7)
    np.testing.assert_allclose(got[0, 0].numpy(), want, rtol=1e-6, atol=1e-9)


def test_without_detections_each_image_has_a_row_that_says_so():
    blobs = bottoms(*scene(3, 4, 2, 1, seed=1))
    layer = detection_layer("num_classes: 2 confidence_threshold: 2", *[blob.shape for blob in blobs])
    assert layer(*blobs)[0, 0].tolist() == [[n, -1, -1, -1, -1, -1, -1] for n in range(3)]


def test_variances_that_are_in_the_codes_already():
    codes, scores, priors, variances = scene(1, 6, 2, 1, seed=2)
    blobs = bottoms(codes, scores, priors, variances)
    layer = detection_layer("num_classes: 2 variance_encoded_in_target: true", *[blob.shape for blob in blobs])
    want = detections(
        codes, scores, priors, np.ones_like(variances), kind="CORNER", background=0, threshold=-1, top_k=-1,
        nms=float(np.float32(0.3)), eta=1.0, keep=-1,
    )  # fmt: skip
    np.testing.assert_allclose(layer(*blobs)[0, 0].numpy(), want, rtol=1e-6)


# -- MultiBoxLoss ---------------------------------------------------------------------------------------------------
TRUTH = [
    [0, 1, 0, 0.1, 0.1, 0.5, 0.6, 0],
    [0, 3, 1, 0.45, 0.3, 0.9, 0.8, 1],
    [2, 2, 0, 0.2, 0.4, 0.6, 0.9, 0],
    [-1, 0, 0, 0, 0, 0, 0, 0],
    [1, 1, 0, 0.2, 0.4, 0.6, 0.9, 0],  # behind the end: not read
]


def loss_layer(options: str, *shapes, loss_param: str = ""):
    text = 'type: "MultiBoxLoss" bottom: "c" bottom: "s" bottom: "p" bottom: "t" top: "y"'
    return build(f"{text} multibox_loss_param {{ {options} }} loss_param {{ {loss_param} }}", *shapes)


def multibox_loss(codes, scores, priors, variances, *, kind, threshold, ratio, neg_overlap, logistic, difficult, l2):
    """Of images 0 to 2, with shared locations; ratio None: no mining. The loss, and the number of matches."""
    truths = [row for row in TRUTH[:3] if difficult or not row[7]]
    total = num_matches = 0
    for n in range(len(codes)):
        own = [row for row in truths if row[0] == n]
        found, nearest = ssd.match(priors, [row[3:7] for row in own], threshold)
        labels = [own[m][1] if m >= 0 else 0 for m in found]

        def confidence(p, label, n=n):
            return (ssd.logistic_loss if logistic else ssd.softmax_loss)(scores[n, p], label)

        matched = [p for p, m in enumerate(found) if m >= 0]
        for p in matched:
            code = ssd.encode(own[found[p]][3:7], priors[p], variances[p], kind)
            differences = [c - t for c, t in zip(codes[n, p, 0], code, strict=True)]
            total += sum(0.5 * d * d if l2 else ssd.smooth_l1(d) for d in differences)
            total += confidence(p, labels[p])
        rest = [p for p, m in enumerate(found) if m < 0]
        if ratio is not None:
            rest = [p for p in rest if nearest[p] < neg_overlap] if own else []
            rest = sorted(rest, key=lambda p: -confidence(p, 0))[: int(len(matched) * ratio)]
        total += sum(confidence(p, None if logistic and ratio is None else 0) for p in rest)
        num_matches += len(matched)
    return total, num_matches


@pytest.mark.parametrize("kind", ["CORNER", "CENTER_SIZE", "CORNER_SIZE"])
@pytest.mark.parametrize("logistic", [False, True])
@pytest.mark.parametrize(
    ("matching", "threshold", "mining", "ratio", "difficult"),
    [
        ("PER_PREDICTION", 0.3, "MAX_NEGATIVE", 1.5, True),
        ("PER_PREDICTION", 0.1, "NONE", None, False),
        ("BIPARTITE", None, "MAX_NEGATIVE", 3, False),
    ],
)
def test_multibox_loss(kind, logistic, matching, threshold, mining, ratio, difficult):
    parts = scene(3, 20, 4, 1, seed=7)
    blobs = (*bottoms(*parts), tensor(TRUTH).view(1, 1, -1, 8))
    options = (
        f"num_classes: 4 code_type: {kind} match_type: {matching} mining_type: {mining} neg_overlap: 0.25 "
        f"use_difficult_gt: {str(difficult).lower()} conf_loss_type: {'LOGISTIC' if logistic else 'SOFTMAX'} "
        f"{f'overlap_threshold: {threshold}' if threshold else ''} {f'neg_pos_ratio: {ratio}' if ratio else ''}"
    )
    layer = loss_layer(options, *[blob.shape for blob in blobs])
    want, num_matches = multibox_loss(
        *parts, kind=kind, threshold=threshold, ratio=ratio, neg_overlap=0.25, logistic=logistic, difficult=difficult,
        l2=False,
    )  # fmt: skip
    assert num_matches > 1
    assert float(layer(*blobs)) == pytest.approx(want / num_matches, rel=1e-9)


@pytest.mark.parametrize(("mode", "divisor"), [("FULL", 60), ("BATCH_SIZE", 3), ("NONE", 1)])
def test_what_the_loss_is_divided_by(mode, divisor):
    parts = scene(3, 20, 4, 1, seed=7)
    blobs = (*bottoms(*parts), tensor(TRUTH).view(1, 1, -1, 8))
    layer = loss_layer(
        "num_classes: 4 loc_loss_type: L2 code_type: CORNER mining_type: NONE",
        *[blob.shape for blob in blobs],
        loss_param=f"normalization: {mode}",
    )
    want, _ = multibox_loss(
        *parts, kind="CORNER", threshold=0.5, ratio=None, neg_overlap=0, logistic=False, difficult=True, l2=True
    )
    assert float(layer(*blobs)) == pytest.approx(want / divisor, rel=1e-9)


def test_a_batch_without_truth():
    parts = scene(2, 5, 3, 1, seed=1)
    blobs = (*bottoms(*parts), tensor([[-1] + [0] * 7]).view(1, 1, 1, 8))
    layer = loss_layer("num_classes: 3", *[blob.shape for blob in blobs])
    assert float(layer(*blobs)) == 0


def test_matching_predicted_boxes_and_boxes_beyond_the_image():
    codes, scores, priors, variances = scene(1, 20, 4, 1, seed=9)
    truth = list(TRUTH[:2])
    boxes = [ssd.decode(codes[0, p, 0], priors[p], variances[p], "CORNER") for p in range(20)]
    inside = [p for p, box in enumerate(boxes) if min(box) >= 0 and max(box) <= 1]
    assert 3 < len(inside) < 20
    found, _ = ssd.match([boxes[p] for p in inside], [row[3:7] for row in truth], 0.5)
    want = 0.0
    for p, m in zip(inside, found, strict=True):
        if m >= 0:
            code = ssd.encode(truth[m][3:7], priors[p], variances[p], "CORNER")
            want += sum(ssd.smooth_l1(c - t) for c, t in zip(codes[0, p, 0], code, strict=True))
            want += ssd.softmax_loss(scores[0, p], truth[m][1])
    others = [p for p in range(20) if p not in {q for q, m in zip(inside, found, strict=True) if m >= 0}]
    want += sum(ssd.softmax_loss(scores[0, p], 0) for p in others)
    blobs = (*bottoms(codes, scores, priors, variances), tensor(truth).view(1, 1, -1, 8))
    layer = loss_layer(
        "num_classes: 4 use_prior_for_matching: false ignore_cross_boundary_bbox: true mining_type: NONE",
        *[blob.shape for blob in blobs],
        loss_param="normalization: NONE",
    )
    assert float(layer(*blobs)) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[3, 1, 0, 0, 0, 1, 1, 0]], "names images 3 to 3, expected 0 to 2"),
        ([[0, 0, 0, 0, 0, 1, 1, 0]], "has class 0, expected 0 to 3 and not the background's, 0"),
        ([[0, 9, 0, 0, 0, 1, 1, 0]], "has class 9, expected 0 to 3"),
    ],
)
def test_truth_that_cannot_be(rows, message):
    blobs = (*bottoms(*scene(3, 5, 4, 1, seed=1)), tensor(rows).view(1, 1, -1, 8))
    layer = loss_layer("num_classes: 4", *[blob.shape for blob in blobs])
    with pytest.raises(LayerError, match=message):
        layer(*blobs)


# -- ROIPooling -----------------------------------------------------------------------------------------------------
def rounded(x: float) -> int:
    return int(math.floor(abs(x) + 0.5) * (1 if x >= 0 else -1))


def roi_pooled(features, rois, pooled_h, pooled_w, scale):
    """Values and, for each, where it came from (None: nowhere)."""
    size = features.shape[2:]
    tops = np.zeros((len(rois), features.shape[1], pooled_h, pooled_w))
    origin = {}
    for r, (image, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (rounded(c * scale) for c in corners)
        height, width = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        for c, i, j in np.ndindex(features.shape[1], pooled_h, pooled_w):
            rows = [min(max(math.floor(i * height / pooled_h) + y1, 0), size[0])]
            rows.append(min(max(math.ceil((i + 1) * height / pooled_h) + y1, 0), size[0]))
            columns = [min(max(math.floor(j * width / pooled_w) + x1, 0), size[1])]
            columns.append(min(max(math.ceil((j + 1) * width / pooled_w) + x1, 0), size[1]))
            best = None
            for h in range(*rows):
                for w in range(*columns):
                    if best is None or features[int(image), c, h, w] > features[int(image), c, best[0], best[1]]:
                        best = (h, w)
            if best is not None:
                tops[r, c, i, j] = features[int(image), c, best[0], best[1]]
                origin[r, c, i, j] = (int(image), c, *best)
    return tops, origin


ROIS = [
    [0, 0, 0, 15, 11],
    [1, 3, 2, 9, 6],
    [1, 8, 8, 2, 2],  # the wrong way round: one pixel
    [0, -9, 4, 40, 5],  # over the edge
    [0, 60, 60, 90, 90],  # outside
    [1, 1, 1, 1, 1],
]


@pytest.mark.parametrize(("pooled", "scale"), [((2, 3), 0.5), ((3, 2), 0.25), ((1, 1), 1.0), ((6, 7), 0.5)])
def test_roi_pooling(pooled, scale):
    random = np.random.default_rng(3)
    features = np.maximum(random.integers(-3, 3, (2, 2, 6, 8)), 0).astype("f8")  # many equal values, as after a ReLU
    text = (
        'type: "ROIPooling" bottom: "x" bottom: "r" top: "y" roi_pooling_param '
        f"{{ pooled_h: {pooled[0]} pooled_w: {pooled[1]} spatial_scale: {scale} }}"
    )
    layer = build(text, features.shape, (len(ROIS), 5))
    x = tensor(features).requires_grad_()
    y = layer(x, tensor(ROIS))
    want, origin = roi_pooled(features, ROIS, *pooled, scale)
    np.testing.assert_array_equal(y.detach().numpy(), want)
    seed = np.random.default_rng(4).standard_normal(want.shape)
    y.backward(tensor(seed))
    gradient = np.zeros_like(features)
    for place, source in origin.items():
        gradient[source] += seed[place]
    np.testing.assert_allclose(x.grad.numpy(), gradient, atol=1e-12)


def test_roi_pooling_of_no_region_and_of_an_image_that_is_not_there():
    text = 'type: "ROIPooling" bottom: "x" bottom: "r" top: "y" roi_pooling_param { pooled_h: 2 pooled_w: 2 }'
    layer = build(text, (1, 3, 4, 4), (1, 5))
    assert layer(torch.zeros(1, 3, 4, 4), torch.zeros(0, 5)).shape == (0, 3, 2, 2)
    with pytest.raises(LayerError, match="a region names image 2, expected 0 to 0"):
        layer(torch.zeros(1, 3, 4, 4), torch.tensor([[2.0, 0, 0, 1, 1]]))


# -- Proposal -------------------------------------------------------------------------------------------------------
def test_anchors_are_those_of_faster_rcnn():
    from poseidon.net.layers.proposal import anchors

    want = [  # the table that py-faster-rcnn's generate_anchors prints
        [-84, -40, 99, 55], [-176, -88, 191, 103], [-360, -184, 375, 199],
        [-56, -56, 71, 71], [-120, -120, 135, 135], [-248, -248, 263, 263],
        [-36, -80, 51, 95], [-80, -168, 95, 183], [-168, -344, 183, 359],
    ]  # fmt: skip
    assert anchors(16, (0.5, 1, 2), (8, 16, 32)).tolist() == want


@pytest.mark.parametrize(("before", "after"), [(0, 100), (12, 4)])
def test_proposals(before, after):
    random = np.random.default_rng(5)
    height, width = 3, 4
    scores = random.uniform(0, 1, (1, 4, height, width))
    moves = random.standard_normal((1, 8, height, width)) * 0.4
    text = (
        'type: "Proposal" bottom: "s" bottom: "d" bottom: "i" top: "y" top: "z" proposal_param { ratio: 0.5 '
        f"scale: 1 scale: 2 feat_stride: 8 min_size: 9 pre_nms_topn: {before} post_nms_topn: {after} nms_thresh: 0.5 }}"
    )
    layer = build(text, scores.shape, moves.shape, (1, 3))
    rows, values = layer(tensor(scores), tensor(moves), tensor([[30, 40, 0.5]]))
    # ratio 0.5 of a 16 x 16 square: 23 wide (√512 = 22.6), 12 high (11.5, half to even), around 7.5
    base = [
        [7.5 - (23 * s - 1) / 2, 7.5 - (12 * s - 1) / 2, 7.5 + (23 * s - 1) / 2, 7.5 + (12 * s - 1) / 2] for s in (1, 2)
    ]
    found = []
    for i, j, a in np.ndindex(height, width, 2):
        x1, y1, x2, y2 = (b + 8 * (j if k % 2 == 0 else i) for k, b in enumerate(base[a]))
        w, h = x2 - x1 + 1, y2 - y1 + 1
        dx, dy, dw, dh = moves[0, 4 * a : 4 * a + 4, i, j]
        cx, cy = x1 + w / 2 + dx * w, y1 + h / 2 + dy * h
        w, h = w * math.exp(dw), h * math.exp(dh)
        box = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
        box = [min(max(b, 0), 39 if k % 2 == 0 else 29) for k, b in enumerate(box)]
        if box[2] - box[0] + 1 >= 4.5 and box[3] - box[1] + 1 >= 4.5:
            found.append((scores[0, 2 + a, i, j], box))
    found.sort(key=lambda entry: -entry[0])
    found = found[:before] if before else found
    kept = [found[k] for k in ssd.suppress([box for _, box in found], 0.5, edge=1)][:after]
    assert len(kept) >= 4
    np.testing.assert_allclose(rows.numpy(), [[0, *box] for _, box in kept], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(values.numpy(), [score for score, _ in kept])


def test_no_proposal_is_an_empty_blob():
    text = 'type: "Proposal" bottom: "s" bottom: "d" bottom: "i" top: "y" proposal_param { min_size: 999 }'
    layer = build(text, (1, 18, 2, 2), (1, 36, 2, 2), (1, 3))
    assert layer(torch.rand(1, 18, 2, 2), torch.zeros(1, 36, 2, 2), torch.tensor([[32.0, 32, 1]])).shape == (0, 5)


# -- what is refused ------------------------------------------------------------------------------------------------
PRIORS = 'type: "PriorBox" bottom: "m" bottom: "i" top: "y" prior_box_param'
DETECT = 'type: "DetectionOutput" bottom: "c" bottom: "s" bottom: "p" top: "y" detection_output_param'
LOSS = 'type: "MultiBoxLoss" bottom: "c" bottom: "s" bottom: "p" bottom: "t" top: "y" multibox_loss_param'
ROI = 'type: "ROIPooling" bottom: "x" bottom: "r" top: "y" roi_pooling_param'
PROPOSAL = 'type: "Proposal" bottom: "s" bottom: "d" bottom: "i" top: "y" proposal_param'
MAPS = [(1, 1, 2, 2), (1, 3, 8, 8)]
THREE = [(1, 8), (1, 4), (1, 2, 8)]
FOUR = [*THREE, (1, 1, 1, 8)]


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (f"{PRIORS} {{ }}", MAPS, r"at least one min_size, all above 0, got \[\]"),
        (f"{PRIORS} {{ min_size: 4 max_size: 3 }}", MAPS, "one max_size above each min_size, or none"),
        (f"{PRIORS} {{ min_size: 4 aspect_ratio: 0 }}", MAPS, "aspect_ratio must be above 0, got 0"),
        (f"{PRIORS} {{ min_size: 4 variance: 1 variance: 2 }}", MAPS, "no, one or 4 values of variance"),
        (f"{PRIORS} {{ min_size: 4 img_h: 4 }}", MAPS, "either img_size or both img_h and img_w"),
        (f"{PRIORS} {{ min_size: 4 step: 4 step_h: 1 step_w: 1 }}", MAPS, "either step or both step_h and step_w"),
        (f"{PRIORS} {{ min_size: 4 step: -4 }}", MAPS, "step must be above 0, got -4"),
        (f"{PRIORS} {{ min_size: 4 }}", [(1, 2), MAPS[1]], "two bottoms N x C x H x W that have pixels, got 1 x 2"),
        (f"{DETECT} {{ }}", THREE, "num_classes is missing"),
        (f"{DETECT} {{ num_classes: 2 nms_param {{ eta: 0 }} }}", THREE, "eta must be above 0 and at most 1, got 0"),
        (f"{DETECT} {{ num_classes: 2 nms_param {{ nms_threshold: -1 }} }}", THREE, "nms_threshold must be at least 0"),
        (f"{DETECT} {{ num_classes: 2 visualize: true }}", THREE, "draws no pictures"),
        (
            f'{DETECT} {{ num_classes: 2 save_output_param {{ output_directory: "out" }} }}',
            THREE,
            "writes no files: take the detections from its top",
        ),
        (f"{DETECT} {{ num_classes: 3 }}", THREE, "needs 6 class scores per image, 3 for each of 2 priors, got 1 x 4"),
        (f"{DETECT} {{ num_classes: 2 }}", [(1, 7), *THREE[1:]], "needs 8 box codes per image"),
        (f"{DETECT} {{ num_classes: 2 }}", [(1, 8), (2, 4), (1, 2, 8)], "of as many images, got 1 x 8 and 2 x 4"),
        (f"{DETECT} {{ num_classes: 2 }}", [(1, 8), (1, 4), (1, 3, 8)], "priors 1 x 2 x .4 per box. as of PriorBox"),
        (f"{LOSS} {{ }}", FOUR, "num_classes is missing"),
        (f"{LOSS} {{ num_classes: 2 background_label_id: 2 }}", FOUR, "below num_classes 2, got 2"),
        (f"{LOSS} {{ num_classes: 2 mining_type: HARD_EXAMPLE }}", FOUR, "does no HARD_EXAMPLE mining"),
        (f"{LOSS} {{ num_classes: 2 bp_inside: true }}", FOUR, "knows no bp_inside"),
        (
            f"{LOSS} {{ num_classes: 2 do_neg_mining: true mining_type: NONE }}",
            FOUR,
            "do_neg_mining and mining_type contradict each other",
        ),
        (f"{LOSS} {{ num_classes: 2 share_location: false }}", FOUR, "mines negatives only with share_location"),
        (f"{LOSS} {{ num_classes: 2 }}", [*THREE, (1, 7)], "8 values per box, 1 x 1 x G x 8, got 1 x 7"),
        (f"{LOSS} {{ num_classes: 2 }}", [(1, 9), *FOUR[1:]], "needs 8 box codes per image"),
        (f"{LOSS} {{ num_classes: 2 }}", [(1, 8), (3, 4), *FOUR[2:]], "of as many images, got 1 x 8 and 3 x 4"),
        (f"{LOSS} {{ num_classes: 2 }}", [(1, 8), (1, 4), (2, 8), FOUR[3]], "priors 1 x 2 x .4 per box."),
        (f"{ROI} {{ pooled_h: 2 }}", [(1, 1, 4, 4), (1, 5)], "must be at least 1, got 2 and 0"),
        (f"{ROI} {{ pooled_h: 2 pooled_w: 2 spatial_scale: 0 }}", [(1, 1, 4, 4), (1, 5)], "must be above 0, got 0"),
        (f"{ROI} {{ pooled_h: 2 pooled_w: 2 }}", [(1, 1, 4), (1, 5)], "features N x C x H x W that have pixels"),
        (f"{ROI} {{ pooled_h: 2 pooled_w: 2 }}", [(1, 1, 4, 4), (1, 4)], "takes regions R x 5"),
        (f"{PROPOSAL} {{ feat_stride: 0 }}", [(1, 18, 2, 2), (1, 36, 2, 2), (1, 3)], "feat_stride must be at least 1"),
        (f"{PROPOSAL} {{ ratio: -1 }}", [(1, 18, 2, 2), (1, 36, 2, 2), (1, 3)], "must be above 0, got -1"),
        (f"{PROPOSAL} {{ }}", [(1, 18, 2, 2), (1, 30, 2, 2), (1, 3)], "takes offsets 1 x 36 x H x W, 4 for each of 9"),
        (f"{PROPOSAL} {{ }}", [(2, 18, 2, 2), (1, 36, 2, 2), (1, 3)], "takes scores 1 x 18 x H x W"),
        (f"{PROPOSAL} {{ }}", [(1, 18, 2, 2), (1, 36, 2, 3), (1, 3)], "scores and offsets of one size"),
        (f"{PROPOSAL} {{ }}", [(1, 18, 2, 2), (1, 36, 2, 2), (1, 2)], "height, width and scale as third bottom"),
    ],
)  # fmt: skip
def test_what_is_refused(text, shapes, message):
    with pytest.raises(LayerError, match=message):
        build(text, *shapes)
