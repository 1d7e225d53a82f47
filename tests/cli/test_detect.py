"""`poseidon detect`: windows in, scores out, against pycaffe's Detector; and the ways in which input can be wrong."""

from __future__ import annotations

import csv

import cv2
import h5py
import numpy as np
import pytest

import caffe
from poseidon.cli import main
from poseidon.cli.window_table import read_windows
from poseidon.errors import DataError
from poseidon.net import Net
from poseidon.spec import parse_net

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 10 dim: 10 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 0.004 } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
WINDOWS = [
    ("b.png", 0, 0, 12, 20),
    ("a.png", 3, 4, 20, 30),
    ("b.png", 5, 6, 9, 9),
    ("b.png", 0, 1, 2, 3),
]
FLAGS = ["--model_def=deploy.prototxt", "--pretrained_model=w.caffemodel"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy.prototxt").write_text(NET)
    Net(parse_net(NET), seed=2).save("w.caffemodel")
    random = np.random.default_rng(1)
    for name, size in (("a.png", (24, 32)), ("b.png", (16, 20))):
        cv2.imwrite(name, random.integers(0, 256, (*size, 3), dtype=np.uint8))
    lines = ["xmin,filename,ymin,xmax,ymax,note"]
    lines += [f"{left},{name},{top}.0,{right},{bottom},x" for name, top, left, bottom, right in WINDOWS]
    (tmp_path / "windows.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def expected(**options) -> np.ndarray:
    """Scores by pycaffe, window by window."""
    net = caffe.Detector("deploy.prototxt", "w.caffemodel", raw_scale=255, channel_swap=[2, 1, 0], **options)
    return np.array([net.detect_windows([(name, [edges])])[0]["prediction"] for name, *edges in WINDOWS])


@pytest.mark.parametrize("pad", [0, 2])
def test_csv_in_and_out(folder, pad, capfd):
    assert main(["detect", "windows.csv", "out.csv", *FLAGS, f"--context-pad={pad}"]) == 0
    with open("out.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["filename", "ymin", "xmin", "ymax", "xmax", "class0", "class1", "class2", "class3"]
    assert [(row[0], *map(int, row[1:5])) for row in rows] == WINDOWS
    scores = np.array([[float(cell) for cell in row[5:]] for row in rows])
    np.testing.assert_allclose(scores, expected(context_pad=pad), rtol=1e-5, atol=1e-7)
    assert "Processed 4 windows" in capfd.readouterr().err


def test_hdf5_in_and_out_with_a_mean(folder):
    mean = np.random.default_rng(3).uniform(90, 130, (3, 5, 5)).astype("f4")
    np.save("mean.npy", mean)
    with h5py.File("windows.h5", "w") as file:
        file.create_dataset("filename", data=[name for name, *_ in WINDOWS], dtype=h5py.string_dtype())
        file["window"] = np.array([edges for _, *edges in WINDOWS], "f8")
    assert main(["detect", "windows.h5", "out.h5", *FLAGS, "--mean-file=mean.npy", "--context-pad=1"]) == 0
    with h5py.File("out.h5") as file:
        assert [name.decode() for name in file["filename"][()]] == [name for name, *_ in WINDOWS]
        assert file["window"][()].tolist() == [edges for _, *edges in WINDOWS]
        scores = file["prediction"][()]
    np.testing.assert_allclose(scores, expected(context_pad=1, mean=mean.mean((1, 2))), rtol=1e-5, atol=1e-7)
    again = read_windows("out.h5")
    assert again.filenames == tuple(name for name, *_ in WINDOWS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column 'filename', expected filename, ymin, xmin, ymax, xmax"),
        ("filename,ymin,xmin,ymax\n", "has no column 'xmax'"),
        ("filename,ymin,xmin,ymax,xmax\n", "windows.csv: has no windows"),
        ("filename,ymin,xmin,ymax,xmax\na.png,1,2,3\n", "windows.csv:2: has 4 columns, expected at least 5"),
        ("filename,ymin,xmin,ymax,xmax\n\na.png,1,2,3,x\n", "windows.csv:3: a window is four numbers, got 1, 2, 3, x"),
        (
            "filename,ymin,xmin,ymax,xmax\na.png,4,2,3,9\n",
            "windows.csv:2: a window has 0 <= ymin < ymax and 0 <= xmin < xmax, got ymin 4, xmin 2, ymax 3, xmax 9",
        ),
        ("filename,ymin,xmin,ymax,xmax\na.png,-1,2,3,9\n", "got ymin -1, xmin 2, ymax 3, xmax 9"),
        ("filename,ymin,xmin,ymax,xmax\na.png,nan,2,3,9\n", "got ymin nan, xmin 2"),
        (
            "filename,ymin,xmin,ymax,xmax\na.png,0,2,25,9\n",
            "ymax 25, xmax 9 reaches beyond the image, which is 24 x 32",
        ),
        ("filename,ymin,xmin,ymax,xmax\ngone.png,0,2,3,9\n", "names 'gone.png', which is not there"),
        ("filename,ymin,xmin,ymax,xmax\ndeploy.prototxt,0,2,3,9\n", "deploy.prototxt: is not an image"),
    ],
)
def test_windows_that_are_wrong(folder, text, message, capfd):
    (folder / "windows.csv").write_text(text)
    assert main(["detect", "windows.csv", "out.csv", *FLAGS, "--context-pad=2"]) == 1
    assert message in capfd.readouterr().err
    assert not (folder / "out.csv").exists()


def test_hdf5_files_that_are_wrong(folder):
    with h5py.File("windows.h5", "w") as file:
        file["filename"] = h5py.ExternalLink("other.h5", "/filename")
        file["window"] = np.zeros((1, 4))
    with pytest.raises(Exception, match="filename is a link to somewhere else"):
        read_windows("windows.h5")
    with h5py.File("windows.h5", "w") as file:
        file["window"] = np.zeros((1, 4))
    with pytest.raises(DataError, match="found no dataset `filename` in it"):
        read_windows("windows.h5")
    with h5py.File("windows.h5", "w") as file:
        file.create_dataset("filename", data=["a.png", "b.png"], dtype=h5py.string_dtype())
        file["window"] = np.zeros((3, 4))
    with pytest.raises(
        DataError, match=r"expected `filename` of N strings and `window` of N x 4 numbers, got \(2,\) and"
    ):
        read_windows("windows.h5")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["windows.csv"], "OUTPUT is missing"),
        (["windows.csv", "out.txt", *FLAGS], "out.txt: expected a name that ends in .csv, .h5, .hdf5"),
        (["windows.csv", "out.csv", FLAGS[0]], "--pretrained-model is missing"),
        (["windows.csv", "out.csv", *FLAGS, "--context-pad=-1"], "--context-pad: expected at least 0, got -1"),
        (["windows.csv", "out.csv", *FLAGS, "--context-pad=5"], "leaves nothing of an input of 10 x 10"),
        (["windows.csv", "out.csv", *FLAGS, "--crop-mode=grid"], "expected one of list, selective_search, got 'grid'"),
        (["gone.csv", "out.csv", *FLAGS, "--context-pad=2"], "gone.csv: there is no such file"),
        (["list.txt", "out.csv", *FLAGS, "--context-pad=2"], "needs the module selective_search_ijcv_with_python"),
        (["windows.csv", "out.csv", *FLAGS, "--mean-file=gone.npy"], "there is no file 'gone.npy'"),
    ],
)
def test_wrong_use(folder, words, message, capfd):
    (folder / "list.txt").write_text("a.png\n")
    assert main(["detect", *words]) == 1
    assert message in capfd.readouterr().err


def test_a_net_of_gray_images(folder, capfd):
    (folder / "deploy.prototxt").write_text(NET.replace("dim: 3 dim: 10", "dim: 1 dim: 10"))
    assert main(["detect", "windows.csv", "out.csv", *FLAGS, "--context-pad=2"]) == 1
    assert "takes images of 1 channels; detect has those of colour images" in capfd.readouterr().err
