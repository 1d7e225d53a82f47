"""Weights in and out of files, against Caffe's own files and an independent reader."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from poseidon.errors import WeightsError
from poseidon.net.net import Net
from poseidon.spec import caffe_pb2
from tests.net.chain_nets import chain, make, same, shape, values
from tests.net.harness import GOLDEN
from tests.net.wire_reader import read_blobs

NETS = sorted(path.name for path in (GOLDEN / "nets").iterdir())
HDF5_NETS = [name for name in NETS if (GOLDEN / "nets" / name / "init.caffemodel.h5").exists()]
LEGACY = sorted(path.name for path in (GOLDEN / "formats" / "legacy_models").iterdir())


# -- Caffe's own files ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NETS)
def test_binary_of_caffe_loads_and_saves_to_the_same_bytes(name, tmp_path):
    folder = GOLDEN / "nets" / name
    net = Net(folder / "net.prototxt", phase="TRAIN", seed=1)
    report = net.load(folder / "init.caffemodel")
    expected = read_blobs(folder / "init.caffemodel")
    assert list(report.matched) == list(expected)
    assert (report.ignored, report.untouched) == ((), ())
    assert same(values(net), {layer: [blob["data"] for blob in blobs] for layer, blobs in expected.items()})
    net.save(tmp_path / "again.caffemodel")
    assert (tmp_path / "again.caffemodel").read_bytes() == (folder / "init.caffemodel").read_bytes()


@pytest.mark.parametrize("name", HDF5_NETS)
def test_hdf5_of_caffe_loads_and_saves_to_the_same_contents(name, tmp_path):
    folder = GOLDEN / "nets" / name
    net, other = (Net(folder / "net.prototxt", phase="TRAIN", seed=seed) for seed in (1, 2))
    net.load(folder / "init.caffemodel.h5")
    other.load(folder / "init.caffemodel")
    assert same(values(net), values(other))
    net.save(tmp_path / "again.caffemodel.h5")
    assert contents(tmp_path / "again.caffemodel.h5") == contents(folder / "init.caffemodel.h5")


def contents(path: Path) -> dict[str, object]:
    """Every object of an HDF5 file: groups as None, datasets as type, shape and values."""
    found: dict[str, object] = {}

    def note(name: str, item: h5py.Group | h5py.Dataset) -> None:
        is_dataset = isinstance(item, h5py.Dataset)
        found[name] = (item.dtype.str, item.shape, item[()].tobytes()) if is_dataset else None

    with h5py.File(path, "r") as file:
        file.visititems(note)
    return found


@pytest.mark.parametrize("name", LEGACY)
def test_old_layouts(name):
    folder = GOLDEN / "formats" / "legacy_models" / name
    record = np.load(folder / "record.npz")
    net = Net(folder / "net.prototxt", folder / "model.caffemodel")
    for key in (key for key in record.files if key.startswith("param/")):
        _, layer, index = key.split("/")
        np.testing.assert_array_equal(net.params[layer][int(index)].detach().numpy(), record[key])
    out = net(data=torch.from_numpy(record["input/data"]))
    np.testing.assert_allclose(out["p"].detach().numpy(), record["blob/p"], rtol=1e-4, atol=1e-5)


def test_diffs_are_written_as_caffe_writes_them(tmp_path):
    folder = GOLDEN / "formats" / "legacy_models" / "v2_binary_with_diff"
    stored = read_blobs(folder / "model.caffemodel")
    net = Net(folder / "net.prototxt", folder / "model.caffemodel", phase="TEST")
    for layer, blobs in stored.items():
        for parameter, blob in zip(net.params[layer], blobs, strict=True):
            assert parameter.grad is None, "stored gradients are not loaded"
            parameter.grad = torch.from_numpy(blob["diff"].copy())
    net.save(tmp_path / "again.caffemodel", with_diff=True)
    again = read_blobs(tmp_path / "again.caffemodel")
    for layer, blobs in stored.items():
        for got, want in zip(again[layer], blobs, strict=True):
            np.testing.assert_array_equal(got["data"], want["data"])
            np.testing.assert_array_equal(got["diff"], want["diff"])


# -- round trips ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", [".caffemodel", ".caffemodel.h5"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trip_keeps_every_bit(ending, dtype, tmp_path):
    text = chain(("a", 4), ("b", 2))
    net = make(text, dtype=dtype)
    net.save(tmp_path / f"w{ending}")
    other = make(text, seed=2, dtype=dtype)
    other.load(tmp_path / f"w{ending}")
    assert same(values(net), values(other))
    if dtype == torch.float64:
        narrow = make(text, seed=3)
        narrow.load(tmp_path / f"w{ending}")
        for mine, theirs in zip(narrow.parameters(), net.parameters(), strict=True):
            assert torch.equal(mine, theirs.float())


@pytest.mark.parametrize("ending", [".caffemodel", ".h5"])
def test_scalar_parameters_stay_scalars(ending, tmp_path):
    text = f"""layer {{ name: "in" type: "Input" top: "x" input_param {{ {shape(2, 3)} }} }}
        layer {{ name: "p" type: "PReLU" bottom: "x" top: "y" prelu_param {{ channel_shared: true }} }}"""
    net, other = make(text), make(text)
    net.params["p"][0].data.fill_(0.75)
    net.save(tmp_path / f"w{ending}")
    other.load(tmp_path / f"w{ending}")
    assert other.params["p"][0].shape == ()
    assert other.params["p"][0].item() == 0.75


def test_float64_is_stored_as_float64(tmp_path):
    net = make(chain(("a", 4)), dtype=torch.float64)
    net.params["a"][0].grad = torch.full((4, 3), 1 / 3, dtype=torch.float64)
    net.save(tmp_path / "w.caffemodel", with_diff=True)
    blobs = read_blobs(tmp_path / "w.caffemodel")["a"]
    assert [array.dtype.str for blob in blobs for array in blob.values()] == ["<f8"] * 4
    assert blobs[0]["diff"][0, 0] == 1 / 3
    assert not blobs[1]["diff"].any()


def test_half_precision_is_stored_as_float32(tmp_path):
    net = make(chain(("a", 4))).to(torch.bfloat16)
    net.save(tmp_path / "w.caffemodel")
    np.testing.assert_array_equal(
        read_blobs(tmp_path / "w.caffemodel")["a"][0]["data"], net.params["a"][0].detach().float().numpy()
    )


def test_format_is_told_by_content_not_by_name(tmp_path):
    text = chain(("a", 4))
    net = make(text)
    net.save(tmp_path / "w.h5")
    net.save(tmp_path / "w.caffemodel")
    shutil.move(tmp_path / "w.h5", tmp_path / "hdf5.caffemodel")
    shutil.move(tmp_path / "w.caffemodel", tmp_path / "binary.h5")
    for name in ("hdf5.caffemodel", "binary.h5"):
        other = make(text, seed=2)
        other.load(tmp_path / name)
        assert same(values(net), values(other)), name


@pytest.mark.parametrize("ending", [".caffemodel", ".h5"])
def test_layer_names_with_slashes(ending, tmp_path):
    text = chain(("inception/3a/1x1", 4), ("inception/3a", 3), ("inception", 2))
    net, other = make(text), make(text, seed=2)
    net.save(tmp_path / f"w{ending}", with_diff=True)
    report = other.load(tmp_path / f"w{ending}")
    assert set(report.matched) == {"inception/3a/1x1", "inception/3a", "inception"}
    assert same(values(net), values(other))


@pytest.mark.parametrize("names", [("a", "a/0"), ("a//b", "c"), ("/a", "c"), ("a", "a"), ("./a", "c")])
def test_names_that_hdf5_cannot_hold(names, tmp_path):
    net = make(chain(*[(name, 2) for name in ("x", "y")]))
    for node, name in zip(net.graph.nodes[1:], names, strict=True):
        node.layer.spec.name = name
    with pytest.raises(WeightsError, match=r"cannot be stored in HDF5.*rename the layer or save a \.caffemodel"):
        net.save(tmp_path / "w.h5")
    assert list(tmp_path.iterdir()) == []


SHARED = """
    layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "one" type: "InnerProduct" bottom: "x" top: "h" param { name: "w" } param { name: "b" }
            inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
    layer { name: "two" type: "InnerProduct" bottom: "h" top: "y" param { name: "w" } param { name: "OTHER" }
            inner_product_param { num_output: 3 } }
"""


def test_shared_blobs_stand_at_the_owner_in_hdf5_and_everywhere_in_binary(tmp_path):
    net = make(SHARED)
    net.params["one"][0].grad = torch.ones(3, 3)
    net.save(tmp_path / "w.h5", with_diff=True)
    net.save(tmp_path / "w.caffemodel")
    found = contents(tmp_path / "w.h5")
    assert {"data/one/0", "data/one/1", "data/two/1", "data/two", "data/in", "diff/two/0"} <= found.keys()
    assert "data/two/0" not in found
    assert found["diff/two/0"] == found["diff/one/0"] == ("<f4", (3, 3), np.ones((3, 3), "<f4").tobytes())
    stored = read_blobs(tmp_path / "w.caffemodel")
    np.testing.assert_array_equal(stored["one"][0]["data"], stored["two"][0]["data"])
    for name in ("w.h5", "w.caffemodel"):
        other = make(SHARED, seed=2)
        assert other.load(tmp_path / name).untouched == ()
        assert same(values(net), values(other))


def test_hdf5_may_leave_out_only_what_is_shared(tmp_path):
    make(SHARED).save(tmp_path / "w.h5")
    apart = make(SHARED.replace('param { name: "w" } param { name: "OTHER" }', ""))
    with pytest.raises(WeightsError, match=re.escape("layer 'two' has 1 blob(s), expected 2 as in the net")):
        apart.load(tmp_path / "w.h5")


def test_permissive_sharers_keep_their_own_shapes(tmp_path):
    text = SHARED.replace("dim: 2 dim: 3", "dim: 2 dim: 4").replace(
        'param { name: "w" } param { name: "OTHER" }\n            inner_product_param { num_output: 3 }',
        'param { name: "w" share_mode: PERMISSIVE } inner_product_param { num_output: 4 }',
    )
    net, other = make(text), make(text, seed=2)
    net.save(tmp_path / "w.caffemodel")
    stored = read_blobs(tmp_path / "w.caffemodel")
    assert (stored["one"][0]["data"].shape, stored["two"][0]["data"].shape) == ((3, 4), (4, 3))
    other.load(tmp_path / "w.caffemodel")
    assert same(values(net), values(other))


# -- matching -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", [".caffemodel", ".h5"])
def test_report_says_what_matched(ending, tmp_path):
    make(chain(("a", 4), ("old", 4), ("b", 2))).save(tmp_path / f"w{ending}")
    net = make(chain(("a", 4), ("new", 4), ("b", 2)), seed=2)
    before = values(net)
    report = net.load(tmp_path / f"w{ending}")
    assert (report.matched, report.ignored, report.untouched) == (("a", "b"), ("old",), ("new",))
    assert str(report).splitlines() == [
        "loaded: 2 layer(s) (a, b)",
        "in the file only, ignored: 1 layer(s) (old)",
        "in the net only, as initialised: 1 layer(s) (new)",
    ]
    assert same({"new": before["new"]}, {"new": values(net)["new"]})
    assert not same(before, values(net))


@pytest.mark.parametrize("ending", [".caffemodel", ".h5"])
def test_shape_mismatch_names_everything_and_changes_nothing(ending, tmp_path):
    path = tmp_path / f"w{ending}"
    make(chain(("a", 4), ("b", 5))).save(path)
    net = make(chain(("a", 4), ("b", 2)), seed=2)
    before = values(net)
    with pytest.raises(WeightsError) as caught:
        net.load(path)
    assert str(caught.value) == (
        f"{path}: layer 'b', blob 0 has shape 5 x 4, expected 2 x 4 as in the net; "
        "rename the layer in the net to learn it from scratch"
    )
    assert same(before, values(net))


@pytest.mark.parametrize("ending", [".caffemodel", ".h5"])
def test_number_of_blobs_must_agree(ending, tmp_path):
    text = chain(("a", 4))
    bare = text.replace("inner_product_param {", "inner_product_param { bias_term: false")
    for stored, wanted, found, expected in ((text, bare, 2, 1), (bare, text, 1, 2)):
        make(stored).save(tmp_path / f"w{ending}")
        message = f"layer 'a' has {found} blob(s), expected {expected} as in the net"
        with pytest.raises(WeightsError, match=re.escape(message)):
            make(wanted).load(tmp_path / f"w{ending}")


def test_old_extents_fit_when_padded_with_ones_in_front(tmp_path):
    message = caffe_pb2.NetParameter()
    layer = message.layer.add(name="a", type="InnerProduct")
    layer.blobs.add(num=1, channels=1, height=4, width=3, data=range(12))
    layer.blobs.add(num=1, channels=1, height=1, width=4, data=range(4))
    (tmp_path / "w.caffemodel").write_bytes(message.SerializeToString())
    net = make(chain(("a", 4)))
    net.load(tmp_path / "w.caffemodel")
    assert net.params["a"][0].tolist() == np.arange(12).reshape(4, 3).tolist()
    layer.blobs[0].num, layer.blobs[0].height = 4, 1
    (tmp_path / "w.caffemodel").write_bytes(message.SerializeToString())
    with pytest.raises(WeightsError, match="layer 'a', blob 0 has shape 4 x 1 x 1 x 3, expected 4 x 3"):
        net.load(tmp_path / "w.caffemodel")


def test_parameters_stay_the_same_objects(tmp_path):
    text = chain(("a", 4))
    make(text).save(tmp_path / "w.caffemodel")
    net = make(text, seed=2)
    held = net.params["a"][0]
    net.load(tmp_path / "w.caffemodel")
    assert net.params["a"][0] is held
    assert held.requires_grad
    assert held.is_leaf


def test_values_embedded_in_the_definition_are_used(tmp_path):
    source = make(chain(("a", 4), ("b", 2)))
    source.save(tmp_path / "w.caffemodel")
    definition = caffe_pb2.NetParameter.FromString((tmp_path / "w.caffemodel").read_bytes())
    assert same(values(source), values(Net(definition, seed=2)))
    del definition.layer[1].blobs[0]
    with pytest.raises(WeightsError, match=re.escape("layer 'a' has 1 blob(s), expected 2 as in the net")):
        Net(definition)


# -- writing --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", [".caffemodel", ".h5"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(ending, tmp_path, monkeypatch):
    path = tmp_path / f"w{ending}"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WeightsError, match=r"cannot be written.*No space left on device"):
        make(chain(("a", 4))).save(path)
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("ending", [".caffemodel", ".h5"])
def test_writing_where_there_is_no_folder(ending, tmp_path):
    with pytest.raises(WeightsError, match="cannot be written"):
        make(chain(("a", 4))).save(tmp_path / "nowhere" / f"w{ending}")


@pytest.mark.parametrize("ending", [".caffemodel", ".h5"])
def test_written_files_have_the_usual_permissions(ending, tmp_path):
    previous = os.umask(0o027)
    try:
        make(chain(("a", 4))).save(tmp_path / f"w{ending}")
    finally:
        os.umask(previous)
    assert (tmp_path / f"w{ending}").stat().st_mode & 0o777 == 0o640
