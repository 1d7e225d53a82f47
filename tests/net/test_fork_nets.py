"""Small nets built as the forks build theirs: their layers work together, in both ways of running a net."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poseidon.net import Net
from poseidon.net.stepwise import Stepwise
from poseidon.spec import parse_net

VARIANCES = "variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2"
GAUSSIAN = 'weight_filler { type: "gaussian" std: 0.3 }'


def conv(name: str, bottom: str, outputs: int, *, kernel: int = 3, options: str = "", kind: str = "Convolution") -> str:
    pad = kernel // 2
    return (
        f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{name}" convolution_param {{ '
        f"num_output: {outputs} kernel_size: {kernel} pad: {pad} {GAUSSIAN} {options} }} }}\n"
    )


def layer(kind: str, name: str, bottoms: str, options: str = "", tops: str = "") -> str:
    reads = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    gives = " ".join(f'top: "{top}"' for top in (tops or name).split())
    return f'layer {{ name: "{name}" type: "{kind}" {reads} {gives} {options} }}\n'


def ssd(head: str) -> str:
    """Two feature maps with predictions around their priors, as SSD's scripts write them."""
    text = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 16 dim: 16 } } }\n'
    text += conv("conv1", "data", 4, options="stride: 2") + layer("ReLU", "relu1", "conv1", tops="conv1")
    text += layer("Normalize", "norm1", "conv1", "norm_param { across_spatial: false channel_shared: false }")
    text += conv("conv2", "conv1", 4, options="stride: 2") + layer("ReLU6", "relu2", "conv2", tops="conv2")
    for name, size in (("norm1", 4), ("conv2", 8)):
        for what, each in (("loc", 3 * 4), ("conf", 3 * 3)):
            text += conv(f"{name}_{what}", name, each)
            text += layer(
                "Permute",
                f"{name}_{what}_perm",
                f"{name}_{what}",
                "permute_param { order: 0 order: 2 order: 3 order: 1 }",
            )
            text += layer("Flatten", f"{name}_{what}_flat", f"{name}_{what}_perm")
        text += layer(
            "PriorBox",
            f"{name}_prior",
            f"{name} data",
            f"prior_box_param {{ min_size: {size} aspect_ratio: 2 {VARIANCES} }}",
        )
    text += layer("Concat", "loc", "norm1_loc_flat conv2_loc_flat") + layer(
        "Concat", "conf", "norm1_conf_flat conv2_conf_flat"
    )
    return text + layer("Concat", "priors", "norm1_prior conv2_prior", "concat_param { axis: 2 }") + head


DETECT = (
    layer("Reshape", "conf_reshape", "conf", "reshape_param { shape { dim: 0 dim: -1 dim: 3 } }")
    + layer("Softmax", "conf_softmax", "conf_reshape", "softmax_param { axis: 2 }")
    + layer("Flatten", "conf_flatten", "conf_softmax")
    + layer(
        "DetectionOutput",
        "detection_out",
        "loc conf_flatten priors",
        "detection_output_param { num_classes: 3 code_type: CENTER_SIZE keep_top_k: 20 confidence_threshold: 0.2 "
        'nms_param { nms_threshold: 0.45 top_k: 40 } save_output_param { label_map_file: "labelmap.prototxt" } }',
    )
)
LOSS = (
    'layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 1 dim: 1 dim: 2 dim: 8 } } }\n'
    + layer(
        "MultiBoxLoss",
        "mbox_loss",
        "loc conf priors label",
        "loss_param { normalization: VALID } propagate_down: [true, true, false, false] "
        "multibox_loss_param { num_classes: 3 code_type: CENTER_SIZE overlap_threshold: 0.4 neg_overlap: 0.4 }",
    )
)


def test_ssd_detects():
    net = Net(parse_net(ssd(DETECT)), phase="TEST", seed=3)
    rows = net(data=torch.randn(2, 3, 16, 16))["detection_out"][0, 0]
    assert 2 < len(rows) <= 40
    assert set(rows[:, 0].int().tolist()) == {0, 1}
    assert set(rows[:, 1].int().tolist()) <= {1, 2}
    assert bool((rows[:, 2] > 0.2).all())


def truth() -> torch.Tensor:
    return torch.tensor([[0, 1, 0, 0.1, 0.1, 0.6, 0.5, 0], [1, 2, 0, 0.3, 0.2, 0.9, 0.9, 0]]).view(1, 1, 2, 8)


def test_ssd_learns_what_it_is_shown():
    net = Net(parse_net(ssd(LOSS)), phase="TRAIN", seed=3)
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    optimiser = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = net(data=images, label=truth()).loss
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    detecting = Net(parse_net(ssd(DETECT)), phase="TEST")
    detecting.load_state_dict(net.state_dict(), strict=False)
    rows = detecting(data=images)["detection_out"][0, 0]
    for image, label, box in ((0, 1, [0.1, 0.1, 0.6, 0.5]), (1, 2, [0.3, 0.2, 0.9, 0.9])):
        best = max(rows[rows[:, 0] == image].tolist(), key=lambda row: row[2])
        assert best[1] == label
        np.testing.assert_allclose(best[3:], box, atol=0.1)


def test_ssd_layer_by_layer_gives_the_same_gradients():
    fused, other = (Net(parse_net(ssd(LOSS)), phase="TRAIN", seed=3, dtype=torch.float64) for _ in range(2))
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    fused(data=images, label=truth().double()).loss.backward()
    run = Stepwise(other)
    run.blobs["data"].data = images.clone()
    run.blobs["label"].data = truth().double()
    run.forward()
    run.backward()
    for (name, mine), (_, theirs) in zip(fused.named_parameters(), other.named_parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, msg=name)


RCNN = (
    'layer { name: "data" type: "Input" top: "data" top: "im_info" '
    "input_param { shape { dim: 1 dim: 3 dim: 64 dim: 80 } shape { dim: 1 dim: 3 } } }\n"
    + conv("conv", "data", 4, options="stride: 16")
    + conv("rpn_cls_score", "conv", 6, kernel=1)
    + conv("rpn_bbox_pred", "conv", 12, kernel=1)
    + layer("Reshape", "rpn_reshape", "rpn_cls_score", "reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } }")
    + layer("Softmax", "rpn_prob", "rpn_reshape")
    + layer("Reshape", "rpn_prob_reshape", "rpn_prob", "reshape_param { shape { dim: 0 dim: 6 dim: -1 dim: 0 } }")
    + layer(
        "Proposal",
        "proposal",
        "rpn_prob_reshape rpn_bbox_pred im_info",
        "proposal_param { scale: 1 min_size: 4 post_nms_topn: 12 }",
        "rois",
    )
    + layer("ROIPooling", "pool5", "conv rois", "roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.0625 }")
    + layer("InnerProduct", "cls_score", "pool5", f"inner_product_param {{ num_output: 5 {GAUSSIAN} }}")
    + layer("Softmax", "cls_prob", "cls_score")
)


def test_faster_rcnn_runs_with_as_many_regions_as_there_are():
    net = Net(parse_net(RCNN), phase="TEST", seed=2)
    images, info = torch.randn(1, 3, 64, 80), torch.tensor([[64.0, 80.0, 1.0]])
    outputs = net({"data": images, "im_info": info}, keep=["rois"])
    num_regions = len(outputs["rois"])
    assert 1 < num_regions <= 12
    assert outputs["cls_prob"].shape == (num_regions, 5)
    run = Stepwise(Net(parse_net(RCNN), phase="TEST", seed=2))
    run.blobs["data"].data, run.blobs["im_info"].data = images.clone(), info.clone()
    run.forward()
    torch.testing.assert_close(run.blobs["cls_prob"].data, outputs["cls_prob"].detach())


@pytest.mark.parametrize("scale", [1e4, 0.0])
def test_no_region_at_all_ends_in_an_empty_result(scale):
    net = Net(parse_net(RCNN), phase="TEST", seed=2)
    outputs = net({"data": torch.randn(1, 3, 64, 80), "im_info": torch.tensor([[64.0, 80.0, scale]])})
    assert outputs["cls_prob"].shape[1:] == (5,)
    assert (len(outputs["cls_prob"]) == 0) == (scale > 1)


def test_a_block_of_senet_and_one_of_shufflenet():
    text = (
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 6 dim: 8 dim: 8 } } }\n'
        + conv("conv", "data", 6)
        + layer("Pooling", "squeeze", "conv", "pooling_param { pool: AVE global_pooling: true }")
        + conv("excite", "squeeze", 6, kernel=1)
        + layer("Sigmoid", "prob", "excite")
        + layer("Axpy", "axpy", "prob conv data")
        + layer("ShuffleChannel", "shuffle", "axpy", "shuffle_channel_param { group: 3 }")
        + conv("depthwise", "shuffle", 6, kind="ConvolutionDepthwise")
        + layer("Interp", "up", "depthwise", "interp_param { zoom_factor: 2 }")
    )
    net = Net(parse_net(text), phase="TRAIN", seed=1, dtype=torch.float64)
    x = torch.randn(2, 6, 8, 8, dtype=torch.float64)
    found = net(data=x)["up"]
    assert found.shape == (2, 6, 15, 15)
    found.square().sum().backward()
    weight = net.params["conv"][0]
    # One weight against a difference, through all the layers.
    step = 1e-6
    with torch.no_grad():
        weight[1, 2, 0, 1] += step
        above = net(data=x)["up"].square().sum()
        weight[1, 2, 0, 1] -= 2 * step
        below = net(data=x)["up"].square().sum()
    assert float(weight.grad[1, 2, 0, 1]) == pytest.approx(float(above - below) / (2 * step), rel=1e-5)
