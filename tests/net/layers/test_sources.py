"""Input, DummyData, MemoryData, HDF5Data and HDF5Output: what they hold, draw, cut, read and write; and refusals."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pytest
import torch

from poseidon.errors import DataError, LayerError
from poseidon.net.draws import Draws
from poseidon.net.net import Net
from poseidon.spec import parse_net
from tests.net.harness import GOLDEN
from tests.net.layers.build import build


# -- Input ----------------------------------------------------------------------------------------------------------
def test_input_shapes():
    once = 'type: "Input" top: "a" top: "b" input_param { shape { dim: 2 dim: 3 } }'
    assert build(once).reshape([]) == [(2, 3), (2, 3)]
    assert build('type: "Input" top: "a" top: "b"').reshape([]) == [(), ()]
    for top in build(once)():
        assert top.shape == (2, 3)
        assert not top.any()


def test_input_refuses():
    shapes = "shape { dim: 1 } shape { dim: 2 }"
    with pytest.raises(LayerError, match=re.escape("input_param.shape must be given once or once per top (3), got 2")):
        build(f'type: "Input" top: "a" top: "b" top: "c" input_param {{ {shapes} }}')
    with pytest.raises(LayerError, match=re.escape("input_param.shape cannot be negative, got 2 x -3")):
        build('type: "Input" top: "a" input_param { shape { dim: 2 dim: -3 } }')


# -- DummyData ------------------------------------------------------------------------------------------------------
def dummy(options: str, tops: int = 1, draws: Draws | None = None):
    names = " ".join(f'top: "t{i}"' for i in range(tops))
    return build(f'type: "DummyData" {names} dummy_data_param {{ {options} }}', draws=draws)


def test_what_is_written_into_a_constant_stays():
    layer = dummy("shape { dim: 3 } data_filler { value: 2 }")
    (top,) = layer()
    assert top.tolist() == [2, 2, 2]
    top[1] = 7
    assert layer()[0].tolist() == [2, 7, 2]


def test_random_tops_change_with_the_clock_and_only_with_it():
    draws = Draws(3)
    layer = dummy("shape { dim: 4 dim: 5 } data_filler { type: 'gaussian' } data_filler { type: 'xavier' }", 2, draws)
    first, again = layer(), layer()
    draws.clock += 1
    later = layer()
    for one, same, other in zip(first, again, later, strict=True):
        assert torch.equal(one, same)
        assert not torch.isclose(one, other).any()


def test_workers_draw_their_samples_of_the_whole_batch():
    text = "shape { dim: %d dim: 3 } data_filler { type: 'uniform' max: 1 }"
    (whole,) = dummy(text % 6, draws=Draws(5))()
    for rank in range(3):
        draws = Draws(5)
        draws.first, draws.stride = rank, 3
        (share,) = dummy(text % 2, draws=draws)()
        assert torch.equal(share, whole[rank::3])


def test_gaussian_statistics_as_recorded():
    record = np.load(GOLDEN / "layers" / "DummyData__gaussian.npz")
    net = Net(parse_net(str(record["prototxt"])), phase="TRAIN", seed=4)
    top = net()["a"].double().numpy()
    mean, deviation = record["filler/top/a/stats"][:2]
    assert top.shape == tuple(record["top_shape/a"])
    np.testing.assert_allclose(top.mean(), mean, atol=0.06)
    np.testing.assert_allclose(top.std(), deviation, rtol=0.03)


@pytest.mark.parametrize(
    ("options", "tops", "message"),
    [
        ("", 1, "shape must be given once or once per top (1), got 0"),
        ("shape { dim: 1 } shape { dim: 1 }", 3, "shape must be given once or once per top (3), got 2"),
        ("shape { dim: -1 }", 1, "dummy_data_param.shape cannot be negative, got -1"),
        ("num: 1 channels: 1 height: 1", 1, "width must be given once or once per top (1), got 0"),
        ("num: 1 shape { dim: 1 }", 1, "extents come as `shape` or as num, channels, height and width, got both"),
        (
            "shape { dim: 1 } data_filler { } data_filler { }",
            3,
            "data_filler must be given never, once or once per top (3), got 2",
        ),
    ],
)
def test_dummy_data_refuses(options, tops, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        dummy(options, tops)


def test_a_filler_that_cannot_fill_is_named_with_its_top():
    layer = dummy("shape { dim: 1 } shape { dim: 2 } data_filler { } data_filler { type: 'norm' }", 2)
    with pytest.raises(LayerError, match="top 1: unknown filler type 'norm'"):
        layer()


# -- MemoryData -----------------------------------------------------------------------------------------------------
MEMORY = 'type: "MemoryData" top: "d" top: "l" memory_data_param { batch_size: 2 channels: 1 height: 2 width: 3 } %s'


def test_memory_data_cycles_through_the_callers_arrays():
    layer = build(MEMORY % "")
    data, labels = np.arange(36.0).reshape(6, 1, 2, 3), np.arange(6.0)
    layer.reset(data, labels)
    seen = []
    for _ in range(4):
        top, label = layer()
        assert label.shape == (2, 1, 1, 1)
        seen += label.flatten().tolist()
        np.testing.assert_array_equal(top.numpy(), data[label.flatten().long().numpy()])
    assert seen == [0, 1, 2, 3, 4, 5, 0, 1]
    data[2:4] = -1
    assert (layer()[0] == -1).all()  # used where they are, not copied
    layer.reset(data, labels)
    assert layer()[1].flatten().tolist() == [0, 1]


def test_memory_data_says_that_it_does_not_transform():
    layer = build(MEMORY % "transform_param { scale: 2 }")
    with pytest.warns(UserWarning, match="'L' \\(MemoryData\\) does not transform arrays given by reset"):
        layer.reset(np.ones((2, 1, 2, 3)), np.zeros(2))
    assert (layer()[0] == 1).all()


def test_memory_data_refuses():
    layer = build(MEMORY % "")
    with pytest.raises(LayerError, match="has no data yet; call reset"):
        layer()
    for data, labels, message in (
        ((4, 1, 3, 2), 4, "data must be n x 1 x 2 x 3, got 4 x 1 x 3 x 2"),
        ((4, 1, 2, 3), 3, "needs one label per sample, got 4 samples and labels 3"),
        ((3, 1, 2, 3), 3, "the number of samples must be a multiple of batch_size 2, got 3"),
        ((0, 1, 2, 3), 0, "the number of samples must be a multiple of batch_size 2, got 0"),
    ):
        with pytest.raises(LayerError, match=re.escape(message)):
            layer.reset(np.zeros(data), np.zeros(labels))
    with pytest.raises(LayerError, match=re.escape("memory_data_param.height must be given and at least 1")):
        build('type: "MemoryData" top: "d" top: "l" memory_data_param { batch_size: 2 channels: 1 width: 3 }')


# -- HDF5Data -------------------------------------------------------------------------------------------------------
def hdf5(options: str, tops: str = 'top: "x" top: "y"'):
    return build(f'type: "HDF5Data" {tops} {options}')


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with h5py.File("a.h5", "w") as file:
        file["x"] = np.arange(10).reshape(5, 2)
        file["y"] = np.arange(5, dtype=np.int8)
    (tmp_path / "list.txt").write_text("a.h5\n")


@pytest.mark.usefixtures("rows")
def test_hdf5_data_gives_the_datasets_by_name_in_the_nets_own_type():
    x, y = hdf5('hdf5_data_param { source: "list.txt" batch_size: 3 }')()
    assert x.dtype == y.dtype == torch.float64
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert y.tolist() == [0, 1, 2]


@pytest.mark.usefixtures("rows")
def test_hdf5_data_shuffles_every_round_anew_and_repeatably():
    text = 'hdf5_data_param { source: "list.txt" batch_size: 5 shuffle: true }'
    layer, twin = hdf5(text), hdf5(text)
    rounds = [layer()[1].tolist() for _ in range(6)]
    assert rounds == [twin()[1].tolist() for _ in range(6)]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in rounds)
    assert len({tuple(order) for order in rounds}) > 1


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('hdf5_data_param { source: "list.txt" }', "hdf5_data_param.batch_size must be given and at least 1"),
        ("hdf5_data_param { batch_size: 1 }", "hdf5_data_param.source must name a text file that lists HDF5 files"),
        (
            'hdf5_data_param { source: "list.txt" batch_size: 1 } transform_param { scale: 2 }',
            "does not transform data",
        ),
    ],
)
def test_hdf5_data_refuses(options, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        hdf5(options)


# -- HDF5Output -----------------------------------------------------------------------------------------------------
OUTPUT = 'type: "HDF5Output" bottom: "x" bottom: "t" hdf5_output_param { file_name: "%s" }'


@pytest.mark.parametrize("name", ["HDF5Output__4d", "HDF5Output__2d_label_matrix"])
def test_hdf5_output_writes_what_caffe_wrote(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = np.load(GOLDEN / "layers" / f"{name}.npz")
    net = Net(parse_net(str(record["prototxt"])), phase="TRAIN")
    net(x=torch.from_numpy(record["bottom/x"]), t=torch.from_numpy(record["bottom/t"]))
    with h5py.File("out.h5", "r") as file:
        assert sorted(file) == ["data", "label"]
        for dataset in file:
            assert file[dataset].dtype == np.float32
            np.testing.assert_array_equal(file[dataset][...], record[f"h5out/out.h5/{dataset}"])


def test_hdf5_output_holds_the_last_pass_and_is_there_from_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layer = build(OUTPUT % "o.h5", (2, 3), (2,))
    with h5py.File("o.h5", "r") as file:
        assert list(file) == []
    for value in (1.0, 2.0):
        assert layer(torch.full((2, 3), value, requires_grad=True), torch.zeros(2, dtype=torch.long)) == ()
    with h5py.File("o.h5", "r") as file:
        assert (file["data"][...] == 2).all()
        assert file["data"].shape == (2, 3, 1, 1)
        assert file["label"].dtype == np.float32


def test_hdf5_output_refuses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LayerError, match=r"hdf5_output_param\.file_name must be given"):
        build(OUTPUT % "", (2, 3), (2,))
    with pytest.raises(LayerError, match="needs as many labels as samples, got bottoms 2 x 3 and 3"):
        build(OUTPUT % "o.h5", (2, 3), (3,))
    with pytest.raises(LayerError, match="writes blobs of at most 4 axes, got shape 1 x 1 x 1 x 1 x 1"):
        build(OUTPUT % "o.h5", (1, 1, 1, 1, 1), (1,))
    with pytest.raises(DataError, match=r"no_folder/o\.h5: cannot write the HDF5 file"):
        build(OUTPUT % "no_folder/o.h5", (2, 3), (2,))
