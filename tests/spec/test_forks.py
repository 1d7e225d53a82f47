"""Files of Caffe's forks, written byte by byte under the numbers those forks use."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.errors import SpecError
from poseidon.spec import format_message, parse_binary, read_weights_proto, serialize
from poseidon.spec.caffe_pb2 import LayerParameter, NetParameter
from poseidon.spec.forks import settle_numbers


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value % 128 + 128]), value // 128
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field * 8) + varint(value)


def real(field: int, value: float) -> bytes:
    return varint(field * 8 + 5) + struct.pack("<f", value)


def bytes_of(field: int, value: bytes | str) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return varint(field * 8 + 2) + varint(len(value)) + value


def layer(kind: str, *fields: bytes, name: str = "l") -> bytes:
    blob = bytes_of(7, bytes_of(5, struct.pack("<2f", 1.5, 2.5)) + bytes_of(7, bytes_of(1, varint(2))))
    return bytes_of(100, bytes_of(1, name) + bytes_of(2, kind) + blob + b"".join(fields))


def options(data: bytes) -> str:
    """The layer-specific part of the first layer that is read, as text on one line."""
    found = parse_binary(data, NetParameter).layer[0]
    assert list(found.blobs[0].data) == [1.5, 2.5]
    found.ClearField("name"), found.ClearField("type"), found.ClearField("blobs")
    return " ".join(format_message(found).split())


INTERP = number(1, 60) + number(2, 80)
ROI = number(1, 7) + number(2, 6) + real(3, 0.0625)


@pytest.mark.parametrize(
    ("kind", "field", "inside", "text"),
    [
        ("Interp", 143, INTERP, "interp_param { height: 60 width: 80 }"),  # DeepLab v2; Input's in Caffe 1.0
        ("Interp", 163, INTERP, "interp_param { height: 60 width: 80 }"),  # PSPNet
        ("Scale", 160, number(4, 1), "scale_param { bias_term: true }"),  # PSPNet
        ("Scale", 142, number(4, 1), "scale_param { bias_term: true }"),
        ("Upsample", 137, number(1, 2), "upsample_param { scale: 2 }"),  # SegNet; Embed's in Caffe 1.0
        ("Upsample", 137, number(6, 23) + number(7, 30), "upsample_param { upsample_h: 23 upsample_w: 30 }"),
        ("Upsample", 149, number(1, 2), "upsample_param { scale: 2 }"),  # YOLOv3 ports
        ("Upsample", 150, number(1, 2), "upsample_param { scale: 2 }"),
        ("Reorg", 147, number(1, 2), "reorg_param { stride: 2 }"),  # a YOLOv2 port; Swish's in Caffe 1.0
        ("Reorg", 159, number(1, 2), "reorg_param { stride: 2 }"),
        ("Region", 148, number(1, 5) + bytes_of(5, "1,2"), 'region_param { classes: 5 anchors: "1,2" }'),  # Clip's
        ("Region", 149, number(3, 5), "region_param { boxes_of_each_grid: 5 }"),  # Upsample's elsewhere
        ("ShuffleChannel", 164, number(1, 3), "shuffle_channel_param { group: 3 }"),
        ("ShuffleChannel", 159, number(1, 3), "shuffle_channel_param { group: 3 }"),  # Reorg's elsewhere
        ("ROIPooling", 8266711, ROI, "roi_pooling_param { pooled_h: 7 pooled_w: 6 spatial_scale: 0.0625 }"),
        ("ROIPooling", 147, ROI, "roi_pooling_param { pooled_h: 7 pooled_w: 6 spatial_scale: 0.0625 }"),
        ("ROIPooling", 150, ROI, "roi_pooling_param { pooled_h: 7 pooled_w: 6 spatial_scale: 0.0625 }"),
        ("Proposal", 201, number(1, 16) + real(8, 0.7), "proposal_param { feat_stride: 16 nms_thresh: 0.7 }"),
        ("Permute", 202, number(1, 0) + number(1, 2), "permute_param { order: 0 order: 2 }"),
        ("Permute", 202, bytes_of(1, b"\x00\x02"), "permute_param { order: 0 order: 2 }"),  # packed
        ("Normalize", 206, number(1, 0), "norm_param { across_spatial: false }"),
        ("PriorBox", 203, real(1, 30), "prior_box_param { min_size: 30 }"),
        ("ReLU6", 2060, real(1, 0.5), "relu6_param { negative_slope: 0.5 }"),
        ("ReLU6", 100000, real(1, 0.5), "relu6_param { negative_slope: 0.5 }"),
        ("Input", 143, bytes_of(1, bytes_of(1, b"\x05")), "input_param { shape { dim: 5 } }"),
        ("Embed", 137, number(1, 2), "embed_param { num_output: 2 }"),
        ("Convolution", 106, number(1, 2), "convolution_param { num_output: 2 }"),
    ],
)
def test_options_under_the_numbers_of_a_fork(kind: str, field: int, inside: bytes, text: str) -> None:
    assert options(layer(kind, bytes_of(field, inside))) == text


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("BN", bytes_of(137, bytes_of(1, bytes_of(1, "constant")) + real(8, 1e-5))),  # PSPNet's, at Embed's number
        ("Somebody's", bytes_of(148, number(1, 3))),  # Clip's, whose min and max are required
        ("Somebody's", bytes_of(203, b"no message at all")),
        ("Convolution", bytes_of(149, "MKL2017")),  # a name where we have Upsample's options
    ],
)
def test_options_that_are_nobodys_are_left_out(kind: str, fields: bytes) -> None:
    assert options(layer(kind, fields)) == ""


def test_options_that_are_there_are_not_overridden() -> None:
    data = layer("Upsample", bytes_of(149, number(1, 4)), bytes_of(152, number(1, 9)))
    assert options(data) == "upsample_param { scale: 4 }"


def test_stray_options_of_caffe_itself_stay() -> None:
    assert options(layer("Scale", bytes_of(141, number(1, 2)))) == "bias_param { axis: 2 }"


def test_layers_around_stay_as_they_are() -> None:
    around = layer("ReLU", bytes_of(123, real(1, 0.5)), name="a")
    moved = layer("Interp", bytes_of(143, INTERP), bytes_of(4, "top"), name="b")
    net = parse_binary(bytes_of(1, "net") + around + moved + around, NetParameter)
    assert [one.name for one in net.layer] == ["a", "b", "a"]
    assert net.name == "net"
    assert list(net.layer[1].top) == ["top"]
    assert net.layer[2].relu_param.negative_slope == 0.5
    assert settle_numbers(around * 2) == around * 2


def test_a_caffemodel_of_a_fork_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pspnet.caffemodel"
    path.write_bytes(layer("BN", bytes_of(137, real(8, 1e-5)), name="bn") + layer("Interp", bytes_of(163, INTERP)))
    net = read_weights_proto(path)
    assert [(one.name, one.type, len(one.blobs)) for one in net.layer] == [("bn", "BN", 1), ("l", "Interp", 1)]


def test_a_required_field_that_is_missing_is_still_an_error() -> None:
    with pytest.raises(SpecError, match=r"found no layer\[0\].clip_param.min"):
        parse_binary(layer("Clip", bytes_of(148, real(2, 1))), NetParameter)


def test_damaged_bytes_are_left_to_the_parser() -> None:
    data = layer("Interp", bytes_of(143, INTERP))[:-3]
    assert settle_numbers(data) == data
    with pytest.raises(SpecError, match="truncated"):
        parse_binary(data, NetParameter)


@given(st.binary(max_size=80))
def test_any_bytes_are_settled_without_a_crash(noise: bytes) -> None:
    settle_numbers(noise)
    settle_numbers(layer("Interp", noise))
    settle_numbers(layer("Interp", bytes_of(143, noise)))


def test_what_we_write_we_read() -> None:
    net = NetParameter()
    for field in LayerParameter.DESCRIPTOR.fields:
        if field.message_type is not None and field.name.endswith("_param") and field.name != "clip_param":
            one = net.layer.add(name=field.name, type="T")
            getattr(one, field.name).SetInParent()
    assert parse_binary(serialize(net), NetParameter) == net
