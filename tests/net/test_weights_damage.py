"""Weight files that are damaged, of another kind, or made to do harm: one clear error, and nothing half loaded."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from poseidon.errors import WeightsError
from poseidon.net.net import Net
from poseidon.spec import caffe_pb2
from tests.net.chain_nets import chain, make, same, values


def assert_refused(net: Net, path: Path, message: str) -> None:
    before = values(net)
    with pytest.raises(WeightsError, match=re.escape(message)) as caught:
        net.load(path)
    assert str(path) in str(caught.value)
    assert same(before, values(net))


@pytest.mark.parametrize("ending", [".caffemodel", ".h5"])
def test_truncated_files_load_whole_layers_or_nothing(ending, tmp_path):
    text = chain(("a", 4), ("b", 2))
    full = make(text)
    full.save(tmp_path / f"w{ending}")
    data = (tmp_path / f"w{ending}").read_bytes()
    cut = tmp_path / f"cut{ending}"
    net = make(text, seed=2)
    untouched, loaded = values(net), values(full)
    refused = 0
    for length in range(0, len(data), max(1, len(data) // 150)):
        cut.write_bytes(data[:length])
        try:
            report = net.load(cut)
        except WeightsError:
            refused += 1
            assert same(untouched, values(net))
        else:  # a binary file cut between two layers is a shorter file, not a damaged one
            assert ending == ".caffemodel"
            expected = {name: (loaded if name in report.matched else untouched)[name] for name in untouched}
            assert same(expected, values(net))
            net = make(text, seed=2)
    assert refused > 100


@pytest.mark.parametrize("ending", [".caffemodel", ".h5"])
def test_flipped_bytes_load_whole_or_not_at_all(ending, tmp_path):
    text = chain(("a", 4), ("b", 2))
    make(text).save(tmp_path / f"w{ending}")
    data = bytearray((tmp_path / f"w{ending}").read_bytes())
    random = np.random.default_rng(3)
    for _ in range(200):
        broken = data.copy()
        for position in random.integers(0, len(data), 4):
            broken[position] ^= int(random.integers(1, 256))
        (tmp_path / "broken").write_bytes(broken)
        net = make(text, seed=2)
        before = values(net)
        try:
            net.load(tmp_path / "broken")
        except WeightsError:
            assert same(before, values(net))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "found no layers"),
        (b"\x89HDF", "not a NetParameter"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "not a readable HDF5 file"),
        (b'name: "net"\nlayer { name: "a" }\n', "it is text; read it as prototxt"),
        (b"PK\x03\x04" + bytes(40), "not a NetParameter"),
        (b"\xff" * 400, "not a NetParameter: damaged at byte 0"),
    ],
)
def test_files_of_another_kind(data, message, tmp_path):
    (tmp_path / "w").write_bytes(data)
    assert_refused(make(chain(("a", 4))), tmp_path / "w", message)


def test_missing_files_and_folders(tmp_path):
    assert_refused(make(chain(("a", 4))), tmp_path / "nowhere.caffemodel", "no such file")
    assert_refused(make(chain(("a", 4))), tmp_path / "nowhere.h5", "no such file")
    assert_refused(make(chain(("a", 4))), tmp_path, "found a folder")


def test_huge_claims_in_binary(tmp_path):
    message = caffe_pb2.NetParameter()
    layer = message.layer.add(name="a", type="InnerProduct")
    layer.blobs.add().shape.dim.extend([1 << 40, 1 << 40])
    layer.blobs.add().shape.dim.extend([4])
    (tmp_path / "w").write_bytes(message.SerializeToString())
    assert_refused(make(chain(("a", 4))), tmp_path / "w", "has shape 1099511627776 x 1099511627776, expected 4 x 3")
    layer.blobs[0].shape.dim[:] = [4, 3]
    (tmp_path / "w").write_bytes(message.SerializeToString())
    assert_refused(make(chain(("a", 4))), tmp_path / "w", "layer 'a', blob 0: found 0 values, expected 12")


@pytest.fixture
def hdf5(tmp_path):
    """A weights file for chain(("a", 4)), without its blob 0, open for mischief."""
    path = tmp_path / "w.h5"
    make(chain(("a", 4))).save(path)
    with h5py.File(path, "a") as file:
        del file["data/a/0"]
        yield file


def assert_hdf5_refused(file: h5py.File, message: str) -> None:
    path = Path(file.filename)
    file.close()
    assert_refused(make(chain(("a", 4)), seed=2), path, message)


def test_huge_claims_in_hdf5(hdf5):
    hdf5["data/a"].create_dataset("0", shape=(1 << 40, 1 << 40), dtype="f4", chunks=(1 << 10, 1 << 10))
    assert_hdf5_refused(hdf5, "has shape 1099511627776 x 1099511627776, expected 4 x 3")


def test_huge_chunks_in_hdf5(hdf5):
    hdf5["data/a"].create_dataset("0", shape=(4, 3), maxshape=(None, None), dtype="f4", chunks=(1 << 14, 1 << 14))
    assert_hdf5_refused(hdf5, "is stored in chunks of 16384 x 16384, larger than its shape 4 x 3: refused")


def test_soft_links_in_hdf5(hdf5):
    hdf5["elsewhere"] = np.zeros((4, 3), "f4")
    hdf5["data/a/0"] = h5py.SoftLink("/elsewhere")
    assert_hdf5_refused(hdf5, "/data/a/0 is a link to somewhere else, expected the data itself: refused")


@pytest.mark.parametrize("place", ["data/a/0", "data/b"])
def test_external_links_in_hdf5(hdf5, place, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as secret:
        secret["x"] = np.zeros((4, 3), "f4")
    hdf5[place] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/x")
    assert_hdf5_refused(hdf5, f"/{place} is a link to somewhere else")


def test_linked_data_group_in_hdf5(hdf5):
    hdf5.move("data", "real")
    hdf5["data"] = h5py.SoftLink("/real")
    assert_hdf5_refused(hdf5, "/data is a link to somewhere else")


def test_external_storage_in_hdf5(hdf5, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(48))
    hdf5["data/a"].create_dataset("0", shape=(4, 3), dtype="f4", external=[(str(tmp_path / "secret"), 0, 48)])
    assert_hdf5_refused(hdf5, "keeps its values in another file, expected them in this one: refused")


def test_virtual_datasets_in_hdf5(hdf5, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as secret:
        secret["x"] = np.zeros((4, 3), "f4")
    layout = h5py.VirtualLayout((4, 3), "f4")
    layout[...] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "x", (4, 3))
    hdf5["data/a"].create_virtual_dataset("0", layout)
    assert_hdf5_refused(hdf5, "keeps its values in another file")


def test_words_instead_of_numbers_in_hdf5(hdf5):
    hdf5["data/a"].create_dataset("0", data=np.full((4, 3), b"word"))
    assert_hdf5_refused(hdf5, "layer 'a', blob 0 holds values of type |S4, expected numbers")


def test_blobs_without_numbers_for_names_in_hdf5(hdf5):
    hdf5["data/a/weight"] = np.zeros((4, 3), "f4")
    assert_hdf5_refused(hdf5, "layer 'a' has blobs named 1, weight, expected 2")


def test_hdf5_of_another_kind(hdf5):
    hdf5.move("data", "model_weights")
    assert_hdf5_refused(hdf5, "found no group 'data', expected weights as Caffe writes them to HDF5")


def test_cycles_in_hdf5_end(hdf5):
    hdf5["data/loop"] = hdf5["data"]
    hdf5["data/a/up"] = hdf5["data/a"]
    hdf5["data/a/0"] = np.ones((4, 3), "f4")
    path = Path(hdf5.filename)
    hdf5.close()
    net = make(chain(("a", 4)), seed=2)
    assert net.load(path).matched == ("a",)
    assert net.params["a"][0].tolist() == [[1, 1, 1]] * 4


@pytest.mark.parametrize("dtype", [">f4", ">f8", "f2", "i4", "u1"])
def test_other_number_formats_in_hdf5(hdf5, dtype):
    hdf5["data/a/0"] = np.arange(12).reshape(4, 3).astype(dtype)
    path = Path(hdf5.filename)
    hdf5.close()
    net = make(chain(("a", 4)), seed=2)
    net.load(path)
    assert net.params["a"][0].tolist() == np.arange(12).reshape(4, 3).tolist()
