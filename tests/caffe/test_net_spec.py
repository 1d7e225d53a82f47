"""Nets written in Python: NetSpec, layers, params."""

# ruff: noqa: C408 (dict(...) is how net specs are written)

from __future__ import annotations

import copy

import numpy as np
import pytest
from google.protobuf import text_format

import caffe
from caffe import layers as L
from caffe import params as P
from caffe.proto import caffe_pb2
from tests.caffe.nets import build


def lenet_tops(batch: int) -> dict[str, object]:
    made = {}
    made["data"], made["label"] = L.DummyData(
        shape=[dict(dim=[batch, 1, 28, 28]), dict(dim=[batch, 1, 1, 1])], transform_param=dict(scale=1 / 255), ntop=2
    )
    xavier = dict(type="xavier")
    made["conv1"] = L.Convolution(made["data"], kernel_size=5, num_output=20, weight_filler=xavier)
    made["pool1"] = L.Pooling(made["conv1"], kernel_size=2, stride=2, pool=P.Pooling.MAX)
    made["ip1"] = L.InnerProduct(made["pool1"], num_output=500, weight_filler=xavier)
    made["relu1"] = L.ReLU(made["ip1"], in_place=True)
    made["ip2"] = L.InnerProduct(made["relu1"], num_output=10, weight_filler=xavier)
    made["loss"] = L.SoftmaxWithLoss(made["ip2"], made["label"])
    return made


def test_a_named_net(tmp_path):
    spec = caffe.NetSpec()
    for name, top in lenet_tops(5).items():
        setattr(spec, name, top)
    proto = spec.to_proto()
    assert [layer.name for layer in proto.layer] == ["data", "conv1", "pool1", "ip1", "relu1", "ip2", "loss"]
    assert proto.layer[4].bottom == proto.layer[4].top == ["ip1"]
    assert list(proto.layer[5].bottom) == ["ip1"]
    assert proto.layer[1].convolution_param.kernel_size == [5]
    assert proto.layer[2].pooling_param.pool == caffe_pb2.PoolingParameter.MAX
    assert proto.layer[0].transform_param.scale == pytest.approx(1 / 255)
    net = build(tmp_path, str(proto))
    assert len(net.layers) == 7
    assert net.blobs["conv1"].data.shape == (5, 20, 24, 24)


def test_an_unnamed_net_counts_by_type(tmp_path):
    proto = lenet_tops(5)["loss"].to_proto()
    names = ["DummyData1", "Convolution1", "Pooling1", "InnerProduct1", "ReLU1", "InnerProduct2", "SoftmaxWithLoss1"]
    assert [layer.name for layer in proto.layer] == names
    assert list(proto.layer[0].top) == ["DummyData1", "DummyData2"]
    assert list(proto.layer[-1].bottom) == ["InnerProduct2", "DummyData2"]
    assert build(tmp_path, str(proto)).forward()["SoftmaxWithLoss1"] > 0


def test_layers_without_tops(tmp_path):
    spec = caffe.NetSpec()
    spec.data, spec.data2 = L.DummyData(shape=dict(dim=3), ntop=2)
    spec.silence = L.Silence(spec.data, ntop=0)
    spec.silence2 = L.Silence(spec.data2, ntop=0)
    proto = spec.to_proto()
    assert [layer.name for layer in proto.layer] == ["data", "silence", "silence2"]
    assert build(tmp_path, str(proto)).forward() == {}
    assert [layer.name for layer in caffe.to_proto(spec.data).layer] == ["DummyData1"]


def test_what_is_no_top_is_refused():
    data = L.DummyData(ntop=2)
    with pytest.raises(TypeError, match=r"^Silence input 0 is not a Top \(type is <class 'tuple'>\)$"):
        L.Silence(data, ntop=0)
    L.Silence(*data, ntop=0)
    spec = caffe.NetSpec()
    spec.both = data
    with pytest.raises(TypeError, match="both is not a Top"):
        spec.to_proto()


def test_fields_of_the_layer_and_of_its_options():
    top = L.Convolution(
        L.Input(input_param=dict(shape=[dict(dim=[1, 3, 8, 8])])),
        name="first",
        param=[dict(lr_mult=1, decay_mult=1), dict(lr_mult=2)],
        include=dict(phase=caffe.TEST),
        convolution_param=dict(num_output=2, kernel_size=[3, 5], pad=(1, 2), engine=P.Convolution.CAFFE),
        loss_weight=0.5,
        propagate_down=[True],
    )
    layer = top.to_proto().layer[1]
    want = text_format.Parse(
        """name: "first" type: "Convolution" bottom: "Input1" top: "Convolution1" loss_weight: 0.5 propagate_down: true
           param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 } include { phase: TEST }
           convolution_param { num_output: 2 kernel_size: 3 kernel_size: 5 pad: 1 pad: 2 engine: CAFFE }""",
        caffe_pb2.LayerParameter(),
    )
    assert layer == want


def test_options_of_types_without_a_message_of_their_own_and_empty_messages():
    data = L.Input(shape=dict(dim=[1, 1, 4, 4]))
    layer = L.Deconvolution(data, num_output=1, kernel_size=np.int64(4)).to_proto().layer[1]
    assert (layer.convolution_param.num_output, list(layer.convolution_param.kernel_size)) == (1, [4])
    layer = L.Python(data, module="m", layer="C", param_str=str({"a": 1}), ntop=1).to_proto().layer[1]
    assert (layer.python_param.module, layer.python_param.param_str) == ("m", "{'a': 1}")
    with pytest.raises(AttributeError, match="layer 'ReLU1' \\(ReLU\\), option 'sloop'"):
        L.ReLU(data, sloop=1).to_proto()
    with pytest.raises(AttributeError, match="no NothingParameter"):
        _ = P.Nothing


def test_a_spec_as_a_dict_and_as_an_object():
    spec = caffe.NetSpec()
    spec["a/b"] = L.Input(shape=dict(dim=[1]))
    spec.relu = L.ReLU(spec["a/b"])
    assert list(spec.tops) == ["a/b", "relu"]
    assert [layer.name for layer in copy.copy(spec).to_proto().layer] == ["a/b", "relu"]
    del spec.relu
    with pytest.raises(AttributeError, match="the net spec has no 'relu' \\(it has: a/b\\)"):
        _ = spec.relu
    del spec["a/b"]
    assert list(spec.to_proto().layer) == []


def test_deeper_than_pythons_stack():
    top = L.Input(shape=dict(dim=[1]))
    for _ in range(5000):
        top = L.Power(top)
    assert len(top.to_proto().layer) == 5001
