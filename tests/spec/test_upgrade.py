"""Upgrades against what Caffe's tools wrote, and each type and option of the old formats written out by hand."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given, settings

from poseidon.errors import SpecError
from poseidon.spec import format_message, needs_upgrade, parse, parse_net, parse_solver, upgrade_net, upgrade_solver
from poseidon.spec.caffe_pb2 import NetParameter, SolverParameter, V0LayerParameter, V1LayerParameter
from tests.spec.messages import messages

FOLDERS = sorted((Path(__file__).parents[1] / "golden" / "formats" / "upgrade").iterdir())
NETS = [folder for folder in FOLDERS if (folder / "kind.txt").read_text().strip() == "net"]
SOLVERS = [folder for folder in FOLDERS if folder not in NETS]


@pytest.mark.parametrize("folder", NETS, ids=lambda folder: folder.name)
def test_nets_become_what_caffes_tool_makes_of_them(folder: Path) -> None:
    net = parse((folder / "in.prototxt").read_text(), NetParameter())
    assert needs_upgrade(net)
    upgrade = upgrade_net(net)
    assert upgrade.changed
    assert upgrade.problems == ()
    assert format_message(net) == (folder / "out.prototxt").read_text()


@pytest.mark.parametrize("folder", NETS, ids=lambda folder: folder.name)
def test_upgrading_twice_changes_nothing_more(folder: Path) -> None:
    net = parse((folder / "out.prototxt").read_text(), NetParameter())
    assert not needs_upgrade(net)
    upgrade = upgrade_net(net)
    assert not upgrade
    assert upgrade.origins == tuple(range(len(net.layer)))
    assert format_message(net) == (folder / "out.prototxt").read_text()


@pytest.mark.parametrize("folder", SOLVERS, ids=lambda folder: folder.name)
def test_solvers_become_what_caffes_tool_makes_of_them(folder: Path) -> None:
    solver = parse_solver((folder / "in.prototxt").read_text())
    assert format_message(solver) == (folder / "out.prototxt").read_text()
    assert not upgrade_solver(solver)


@pytest.mark.parametrize(
    ("number", "name"),
    list(enumerate(["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"])),
    ids=lambda value: str(value),
)
def test_solver_types(number: int, name: str) -> None:
    solver = SolverParameter(solver_type=number)
    assert upgrade_solver(solver)
    assert solver == SolverParameter(type=name)


def upgraded(text: str) -> str:
    return format_message(parse_net(text).net)


def expected(text: str) -> str:
    return format_message(parse(text, NetParameter()))


V1_TYPES = {
    "ABSVAL": "AbsVal",
    "ACCURACY": "Accuracy",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "CONCAT": "Concat",
    "CONTRASTIVE_LOSS": "ContrastiveLoss",
    "CONVOLUTION": "Convolution",
    "DATA": "Data",
    "DECONVOLUTION": "Deconvolution",
    "DROPOUT": "Dropout",
    "DUMMY_DATA": "DummyData",
    "ELTWISE": "Eltwise",
    "EUCLIDEAN_LOSS": "EuclideanLoss",
    "EXP": "Exp",
    "FLATTEN": "Flatten",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "HINGE_LOSS": "HingeLoss",
    "IM2COL": "Im2col",
    "IMAGE_DATA": "ImageData",
    "INFOGAIN_LOSS": "InfogainLoss",
    "INNER_PRODUCT": "InnerProduct",
    "LRN": "LRN",
    "MEMORY_DATA": "MemoryData",
    "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss",
    "MVN": "MVN",
    "NONE": "",
    "POOLING": "Pooling",
    "POWER": "Power",
    "RELU": "ReLU",
    "SIGMOID": "Sigmoid",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss",
    "SILENCE": "Silence",
    "SLICE": "Slice",
    "SOFTMAX": "Softmax",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "SPLIT": "Split",
    "TANH": "TanH",
    "THRESHOLD": "Threshold",
    "WINDOW_DATA": "WindowData",
}


@pytest.mark.parametrize("old", V1LayerParameter.LayerType.keys())
def test_v1_types(old: str) -> None:
    assert upgraded(f"layers {{ name: 'x' type: {old} }}") == expected(f"layer {{ name: 'x' type: '{V1_TYPES[old]}' }}")


V1_COPIED = [
    *("name: 'x'", "bottom: 'a' bottom: 'b'", "top: 'c' top: 'd'", "loss_weight: 1 loss_weight: 0"),
    *("include { phase: TRAIN } include { min_level: 2 }", "exclude { stage: 's' }"),
    "blobs { num: 1 channels: 1 height: 1 width: 2 data: 3 data: 4 } blobs { shape { dim: 1 } diff: 2 }",
    *("accuracy_param { top_k: 5 }", "argmax_param { out_max_val: true }", "concat_param { concat_dim: 2 }"),
    *(
        "contrastive_loss_param { margin: 2 }",
        "convolution_param { num_output: 3 pad: 1 }",
        "data_param { source: 's' }",
    ),
    *("dropout_param { dropout_ratio: 0.2 }", "dummy_data_param { num: 1 num: 2 }", "eltwise_param { operation: MAX }"),
    *("exp_param { base: 2 }", "hdf5_data_param { batch_size: 3 }", "hdf5_output_param { file_name: 'f' }"),
    *("hinge_loss_param { norm: L2 }", "image_data_param { shuffle: true }", "infogain_loss_param { source: 's' }"),
    *("inner_product_param { num_output: 4 }", "lrn_param { k: 2 }", "memory_data_param { batch_size: 7 }"),
    *("mvn_param { across_channels: true }", "pooling_param { pool: AVE }", "power_param { shift: 2 }"),
    *("relu_param { negative_slope: 0.1 }", "sigmoid_param { engine: CAFFE }", "softmax_param { engine: CUDNN }"),
    *(
        "slice_param { slice_point: 1 slice_point: 2 }",
        "tanh_param { engine: CAFFE }",
        "threshold_param { threshold: 1 }",
    ),
    *("window_data_param { context_pad: 2 }", "transform_param { mean_value: 1 }", "loss_param { normalize: false }"),
    "relu_param { }",
]


@pytest.mark.parametrize("field", V1_COPIED, ids=lambda field: field.split(" ")[0])
def test_v1_fields_that_stay_as_they_are(field: str) -> None:
    assert upgraded(f"layers {{ {field} }}") == expected(f"layer {{ {field} }}")


def test_every_v1_field_is_tried() -> None:
    tried = {word.rstrip(":") for field in V1_COPIED for word in field.split(" ")}
    dealt_out = {"type", "layer", "param", "blob_share_mode", "blobs_lr", "weight_decay"}
    assert set(V1LayerParameter.DESCRIPTOR.fields_by_name) <= tried | dealt_out


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("param: 'w'", "param { name: 'w' }"),
        ("blob_share_mode: PERMISSIVE", "param { share_mode: PERMISSIVE }"),
        ("blob_share_mode: STRICT", "param { share_mode: STRICT }"),
        ("blobs_lr: 0", "param { lr_mult: 0 }"),
        ("weight_decay: 3", "param { decay_mult: 3 }"),
        ("blobs_lr: 1 weight_decay: 5 weight_decay: 6", "param { lr_mult: 1 decay_mult: 5 } param { decay_mult: 6 }"),
        (
            "weight_decay: 1 param: 'a' param: 'b' param: 'c' blobs_lr: 2 blobs_lr: 3 blob_share_mode: PERMISSIVE",
            "param { name: 'a' share_mode: PERMISSIVE lr_mult: 2 decay_mult: 1 }"
            "param { name: 'b' lr_mult: 3 } param { name: 'c' }",
        ),
    ],
)
def test_v1_lists_are_dealt_out_to_params(old: str, new: str) -> None:
    assert upgraded(f"layers {{ {old} }}") == expected(f"layer {{ {new} }}")


@pytest.mark.parametrize("kind", ["DATA data", "IMAGE_DATA image_data", "WINDOW_DATA window_data"])
@pytest.mark.parametrize("field", ["scale: 0.5", "mean_file: 'm'", "crop_size: 3", "mirror: false"])
def test_v1_transforms(kind: str, field: str) -> None:
    old, param = kind.split()
    assert upgraded(f"layers {{ type: {old} {param}_param {{ source: 's' {field} }} }}") == expected(
        f"layer {{ type: '{V1_TYPES[old]}' {param}_param {{ source: 's' }} transform_param {{ {field} }} }}"
    )


def test_an_old_transform_overrides_a_new_one() -> None:
    text = "layers { type: DATA data_param { scale: 2 } transform_param { scale: 3 mirror: true } }"
    assert upgraded(text) == expected("layer { type: 'Data' data_param { } transform_param { scale: 2 mirror: true } }")


def test_one_old_transform_leaves_empty_messages_in_the_other_data_layers() -> None:
    text = "layers { type: DATA } layers { type: IMAGE_DATA image_data_param { scale: 2 } } layers { type: HDF5_DATA }"
    assert upgraded(text) == expected(
        "layer { type: 'Data' data_param { } transform_param { } }"
        "layer { type: 'ImageData' image_data_param { } transform_param { scale: 2 } } layer { type: 'HDF5Data' }"
    )


def test_transforms_of_other_types_and_of_current_layers_stay() -> None:
    text = "layers { type: RELU data_param { scale: 2 } }"
    assert upgraded(text) == expected("layer { type: 'ReLU' data_param { scale: 2 } }")
    assert not needs_upgrade(parse("layer { type: 'Data' data_param { scale: 2 } }", NetParameter()))


def test_both_kinds_of_layers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        source = parse_net("layer { name: 'new' }\nlayers { name: 'old' }", "n.prototxt")
    assert [layer.name for layer in source.net.layer] == ["old"]
    assert source.lines == (2,)
    assert caplog.messages == [
        "n.prototxt:2: the net has both 'layers' and 'layer': the 1 given as 'layer' are dropped"
    ]


V0_TYPES = {
    "accuracy": "Accuracy",
    "bnll": "BNLL",
    "concat": "Concat",
    "conv": "Convolution",
    "data": "Data",
    "dropout": "Dropout",
    "euclidean_loss": "EuclideanLoss",
    "flatten": "Flatten",
    "hdf5_data": "HDF5Data",
    "hdf5_output": "HDF5Output",
    "im2col": "Im2col",
    "images": "ImageData",
    "infogain_loss": "InfogainLoss",
    "innerproduct": "InnerProduct",
    "lrn": "LRN",
    "multinomial_logistic_loss": "MultinomialLogisticLoss",
    "pool": "Pooling",
    "relu": "ReLU",
    "sigmoid": "Sigmoid",
    "softmax": "Softmax",
    "softmax_loss": "SoftmaxWithLoss",
    "split": "Split",
    "tanh": "TanH",
    "window_data": "WindowData",
}


@pytest.mark.parametrize(("old", "new"), list(V0_TYPES.items()))
def test_v0_types(old: str, new: str) -> None:
    text = f"layers {{ layer {{ name: 'x' type: '{old}' }} top: 't' }}"
    assert upgraded(text) == expected(f"layer {{ name: 'x' type: '{new}' top: 't' }}")


FILLER = "{ type: 'gaussian' std: 2 }"
V0_OPTIONS = [
    ("conv innerproduct", "num_output: 7", "num_output: 7"),
    ("conv innerproduct", "biasterm: false", "bias_term: false"),
    ("conv innerproduct", f"weight_filler {FILLER}", f"weight_filler {FILLER}"),
    ("conv innerproduct", f"bias_filler {FILLER}", f"bias_filler {FILLER}"),
    ("conv pool", "pad: 0", "pad: 0"),
    ("conv pool", "kernelsize: 3", "kernel_size: 3"),
    ("conv pool", "stride: 2", "stride: 2"),
    ("conv", "group: 2", "group: 2"),
    ("pool", "pool: MAX", "pool: MAX"),
    ("pool", "pool: AVE", "pool: AVE"),
    ("pool", "pool: STOCHASTIC", "pool: STOCHASTIC"),
    ("dropout", "dropout_ratio: 0.3", "dropout_ratio: 0.3"),
    ("lrn", "local_size: 3", "local_size: 3"),
    ("lrn", "alpha: 0.1", "alpha: 0.1"),
    ("lrn", "beta: 0.5", "beta: 0.5"),
    ("lrn", "k: 3", "k: 3"),
    ("data hdf5_data images window_data infogain_loss", "source: 's'", "source: 's'"),
    ("data hdf5_data images window_data", "batchsize: 9", "batch_size: 9"),
    ("data images", "rand_skip: 4", "rand_skip: 4"),
    ("images", "shuffle_images: true", "shuffle: true"),
    ("images", "new_height: 5", "new_height: 5"),
    ("images", "new_width: 6", "new_width: 6"),
    ("concat", "concat_dim: 0", "concat_dim: 0"),
    ("window_data", "det_fg_threshold: 0.6", "fg_threshold: 0.6"),
    ("window_data", "det_bg_threshold: 0.4", "bg_threshold: 0.4"),
    ("window_data", "det_fg_fraction: 0.1", "fg_fraction: 0.1"),
    ("window_data", "det_context_pad: 8", "context_pad: 8"),
    ("window_data", "det_crop_mode: 'square'", "crop_mode: 'square'"),
    ("hdf5_output", "hdf5_output_param { file_name: 'f' }", "file_name: 'f'"),
]
V0_PARAMS = {
    "conv": "convolution_param",
    "innerproduct": "inner_product_param",
    "pool": "pooling_param",
    "dropout": "dropout_param",
    "lrn": "lrn_param",
    "data": "data_param",
    "hdf5_data": "hdf5_data_param",
    "hdf5_output": "hdf5_output_param",
    "images": "image_data_param",
    "window_data": "window_data_param",
    "infogain_loss": "infogain_loss_param",
    "concat": "concat_param",
}


@pytest.mark.parametrize(
    ("kind", "old", "new"), [(kind, old, new) for kinds, old, new in V0_OPTIONS for kind in kinds.split()]
)
def test_v0_options(kind: str, old: str, new: str) -> None:
    text = f"layers {{ layer {{ type: '{kind}' {old} }} }}"
    assert upgraded(text) == expected(f"layer {{ type: '{V0_TYPES[kind]}' {V0_PARAMS[kind]} {{ {new} }} }}")


@pytest.mark.parametrize("kind", V0_TYPES)
def test_v0_options_of_every_layer(kind: str) -> None:
    old = "scale: 2 meanfile: 'm' cropsize: 3 mirror: true blobs { num: 1 data: 5 } blobs_lr: 6 weight_decay: 7"
    new = "transform_param { scale: 2 mean_file: 'm' crop_size: 3 mirror: true } blobs { num: 1 data: 5 }"
    assert upgraded(f"layers {{ layer {{ type: '{kind}' {old} }} }}") == expected(
        f"layer {{ type: '{V0_TYPES[kind]}' {new} param {{ lr_mult: 6 decay_mult: 7 }} }}"
    )


@pytest.mark.parametrize(
    ("takers", "old"),
    [(kinds, old) for kinds, old, _ in V0_OPTIONS] + [("", "new_num: 1"), ("", "new_channels: 1")],
)
def test_v0_options_that_mean_nothing_are_dropped_and_reported(takers: str, old: str) -> None:
    option = old.split(" ")[0].rstrip(":")
    for kind in set(V0_TYPES) - set(takers.split()):
        net = parse(f"layers {{ layer {{ name: 'x' type: '{kind}' {old} }} }}", NetParameter())
        problem = f"layer 0: '{option}' means nothing to layer 'x' of type '{kind}': dropped"
        assert upgrade_net(net).problems == (problem,)
        assert format_message(net) == expected(f"layer {{ name: 'x' type: '{V0_TYPES[kind]}' }}")


def test_every_v0_field_is_tried() -> None:
    tried = {old.split(" ")[0].rstrip(":") for _, old, _ in V0_OPTIONS}
    everywhere = {"name", "type", "scale", "meanfile", "cropsize", "mirror", "blobs", "blobs_lr", "weight_decay"}
    nowhere = {"new_num", "new_channels"}
    assert set(V0LayerParameter.DESCRIPTOR.fields_by_name) == tried | everywhere | nowhere


def test_v0_unknown_type() -> None:
    with pytest.raises(SpecError, match=r"^n:2: layer 'x' has type 'poool', expected one of accuracy, .*'pool'\?\)$"):
        parse_net("\nlayers { layer { name: 'x' type: 'poool' } }", "n")


def test_v0_net_keeps_name_force_backward_and_inputs() -> None:
    text = """name: "n" force_backward: false input: "a" input_dim: [1, 2, 3, 4]
              layers { layer { name: "r" type: "relu" } bottom: "a" top: "a" }"""
    assert upgraded(text) == expected(
        """name: "n" force_backward: false
           layer { name: "input" type: "Input" top: "a" input_param { shape { dim: [1, 2, 3, 4] } } }
           layer { name: "r" type: "ReLU" bottom: "a" top: "a" }"""
    )


def padded(reader: str) -> str:
    return f"""input: "a" layers {{ layer {{ name: "p" type: "padding" pad: 2 }} bottom: "a" top: "p" }}
               layers {{ {reader} bottom: "p" top: "c" }}"""


@pytest.mark.parametrize(("kind", "param"), [("conv", "convolution_param"), ("pool", "pooling_param")])
def test_padding_goes_to_its_reader(kind: str, param: str) -> None:
    text = padded(f'layer {{ name: "c" type: "{kind}" pad: 9 }}')
    layer = f"name: 'c' type: '{V0_TYPES[kind]}' bottom: 'a' top: 'c' {param} {{ pad: 2 }}"
    assert upgraded(text) == expected(f"layer {{ {layer} }}")


def test_padding_read_twice_and_overwritten() -> None:
    text = """layers { layer { name: "d" type: "data" } top: "a" }
              layers { layer { name: "p" type: "padding" pad: 2 } bottom: "a" top: "p" }
              layers { layer { name: "c1" type: "conv" } bottom: "p" top: "c1" }
              layers { layer { name: "c2" type: "conv" } bottom: "p" top: "p" }
              layers { layer { name: "r" type: "relu" } bottom: "p" top: "r" }"""
    assert upgraded(text) == expected(
        """layer { name: "d" type: "Data" top: "a" }
           layer { name: "c1" type: "Convolution" bottom: "a" top: "c1" convolution_param { pad: 2 } }
           layer { name: "c2" type: "Convolution" bottom: "a" top: "p" convolution_param { pad: 2 } }
           layer { name: "r" type: "ReLU" bottom: "p" top: "r" }"""
    )
    assert upgrade_net(parse(text, NetParameter())).origins == (0, 2, 3, 4)


def test_padding_read_by_a_layer_that_cannot_pad() -> None:
    with pytest.raises(
        SpecError, match=r"layer 'r' reads padding layer 'p' and has type 'relu', expected 'conv' or 'pool'"
    ):
        parse_net(padded('layer { name: "r" type: "relu" }'))


def test_padding_with_too_many_blobs() -> None:
    text = padded('layer { name: "c" type: "conv" }').replace('top: "p"', 'top: "p" top: "q"')
    with pytest.raises(
        SpecError, match="'p' and its reader 'c' have 1 and 1 bottoms and the padding 2 tops, expected one of"
    ):
        parse_net(text)


def test_v0_unknown_bottom() -> None:
    text = """layers { layer { name: "d" type: "data" } top: "data" }
              layers { layer { name: "r" type: "relu" } bottom: "dat" }"""
    with pytest.raises(SpecError) as error:
        parse_net(text, "n")
    assert str(error.value) == "n:2: Unknown bottom blob 'dat' (layer 'r', bottom index 0) (did you mean 'data'?)"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("input: 'a' input_dim: [1, 2, 3, 4]", "top: 'a' input_param { shape { dim: [1, 2, 3, 4] } }"),
        (
            "input: 'a' input: 'b' input_dim: [1, 2, 3, 4, 5, 6, 7, 8]",
            "top: 'a' top: 'b' input_param { shape { dim: [1, 2, 3, 4] } shape { dim: [5, 6, 7, 8] } }",
        ),
        ("input: 'a' input_shape { dim: 5 }", "top: 'a' input_param { shape { dim: 5 } }"),
        (
            "input: ['a', 'b'] input_shape { dim: [5, 6, 7, 8, 9] } input_shape { } input_dim: 3",
            "top: ['a', 'b'] input_param { shape { dim: [5, 6, 7, 8, 9] } shape { } }",
        ),
    ],
)
def test_inputs_become_one_layer_in_front(old: str, new: str) -> None:
    text = f"layer {{ name: 'x' }} {old} layer {{ name: 'y' }}"
    layers = f"layer {{ name: 'input' type: 'Input' {new} }} layer {{ name: 'x' }} layer {{ name: 'y' }}"
    assert upgraded(text) == expected(layers)


def test_inputs_without_extents_are_dropped() -> None:
    assert upgraded("input: 'a' layer { name: 'x' }") == expected("layer { name: 'x' }")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\ninput: 'a' input_dim: [1, 2, 3]", "n:2: found 3 input_dim, expected 4 for 1 inputs"),
        (
            "input: 'a'\ninput: 'b' input_shape { }",
            "n:1: found 1 input_shape, expected 2 for 2 inputs",
        ),
    ],
)
def test_inputs_with_too_few_extents(text: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_net(text, "n")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_batch_norms_with_another_number_of_params_stay(count: int) -> None:
    assert not needs_upgrade(parse(f"layer {{ type: 'BatchNorm' {'param { lr_mult: 1 }' * count} }}", NetParameter()))


def test_batch_norm_params_keep_their_names() -> None:
    text = "layer { type: 'BatchNorm' param { name: 'a' share_mode: PERMISSIVE } param { } param { lr_mult: 0 } }"
    zero = "lr_mult: 0 decay_mult: 0"
    params = f"param {{ name: 'a' share_mode: PERMISSIVE {zero} }} param {{ {zero} }} param {{ {zero} }}"
    assert upgraded(text) == expected(f"layer {{ type: 'BatchNorm' {params} }}")


@given(messages(NetParameter))
@settings(max_examples=300, deadline=None)
def test_any_net_is_upgraded_once_or_refused(net: NetParameter) -> None:
    try:
        first = upgrade_net(net)
    except SpecError:
        return
    assert len(first.origins) == len(net.layer)
    assert not needs_upgrade(net)
    after = NetParameter.FromString(net.SerializeToString())
    assert not upgrade_net(net)
    assert net == after
