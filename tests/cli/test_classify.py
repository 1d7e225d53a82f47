"""classify: scores computed by hand, the best classes by name, folders, gray nets, mistakes."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from poseidon.cli import main
from poseidon.net import Net
from tests.tools.kit import some_pixels, write_images

DEPLOY = """
layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 2 dim: {channels} dim: 4 dim: 5 }} }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {{ num_output: 3
  weight_filler {{ type: "gaussian" std: 0.01 }} }} }}
layer {{ name: "prob" type: "Softmax" bottom: "ip" top: "prob" }}
"""
FLAGS = ["--model_def=deploy.prototxt", "--pretrained_model=net.caffemodel", "--images_dim=4,5"]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def build(channels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Writes the net and its weights; returns the matrix and the offset."""
    Path("deploy.prototxt").write_text(DEPLOY.format(channels=channels))
    net = Net("deploy.prototxt", phase="TEST", seed=4)
    net.save("net.caffemodel")
    return tuple(param.detach().numpy().astype(np.float64) for param in net.params["ip"])


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max())
    return powers / powers.sum()


def test_scores_by_hand(here, capsys):
    weight, bias = build()
    pixels = write_images(here / "images", {"a.png": (4, 5)})["a.png"]
    (here / "labels.txt").write_text("cat\nwild dog\nhorse\n")
    mean = np.array([10.0, 20.0, 30.0])
    np.save("mean.npy", mean)
    words = ["images/a.png", "out.npy", *FLAGS, "--center_only", "--mean_file=mean.npy", "--input_scale=0.5"]
    assert main(["classify", *words, "--labels_file=labels.txt", "--top=2"]) == 0
    # Blue first, as OpenCV has it; bytes, less the mean of each channel, halved.
    image = (pixels.astype(np.float64).transpose(2, 0, 1) - mean.reshape(3, 1, 1)) * 0.5
    expected = softmax(weight @ image.ravel() + bias)
    assert np.allclose(np.load("out.npy"), [expected], rtol=1e-4, atol=1e-6)
    shown = capsys.readouterr().out.splitlines()
    best = np.argsort(-expected)[:2]
    names = ["cat", "wild dog", "horse"]
    assert shown == ["images/a.png:", *(f"  {expected[index]:.4f}  {names[index]}" for index in best)]


def test_ten_crops_of_a_folder(here):
    weight, bias = build()
    sizes = {f"{name}.jpg": (4, 5) for name in "cab"}
    write_images(here / "images", sizes)
    words = ["images", "out", "--model_def=deploy.prototxt", "--pretrained_model=net.caffemodel"]
    assert main(["classify", *words, "--images_dim=4,5", "--channel_swap=0,1,2"]) == 0
    found = np.load("out.npy")
    for row, name in zip(found, sorted(sizes), strict=True):
        image = cv2.imread(f"images/{name}")[:, :, ::-1].astype(np.float64).transpose(2, 0, 1)
        both = [softmax(weight @ view.ravel() + bias) for view in (image, image[:, :, ::-1])]
        assert np.allclose(row, np.mean(both, axis=0), rtol=1e-4, atol=1e-6)


def test_a_gray_net_and_an_array(here):
    weight, bias = build(channels=1)
    images = np.random.RandomState(3).rand(5, 4, 5, 1).astype(np.float32)
    np.save("in.npy", images)
    assert main(["classify", "in.npy", "out.npy", *FLAGS, "--center_only", "--raw_scale=1"]) == 0
    expected = [softmax(weight @ image.ravel().astype(np.float64) + bias) for image in images]
    assert np.allclose(np.load("out.npy"), expected, rtol=1e-4, atol=1e-6)
    cv2.imwrite("gray.png", some_pixels(4, 5, 1)[:, :, 0])
    assert main(["classify", "gray.png", *FLAGS, "--center_only"]) == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a.png"], "--model-def is missing"),
        (["a.png", "--model_def=deploy.prototxt"], "--pretrained-model is missing"),
        (["gone.png", *FLAGS], "there is no file 'gone.png'"),
        (["labels.txt", *FLAGS], "labels.txt: is not an image that OpenCV can read"),
        ([".", *FLAGS], ".: has no *.jpg; say with --ext what its images end in"),
        (["a.png", *FLAGS, "--images_dim=3,3"], "deploy.prototxt takes images of 4 x 5"),
        (["a.png", *FLAGS, "--images_dim=x"], "--images-dim is a list of numbers"),
        (["a.png", *FLAGS, "--channel_swap=1,0"], "the order needs one entry per channel"),
        (["a.png", *FLAGS, "--mean_file=labels.txt"], "labels.txt: not a BlobProto"),
        (["a.png", *FLAGS, "--labels_file=labels.txt"], "the net has 3 classes, the labels file only 1"),
    ],
)
def test_mistakes(words, expected, here, capsys):
    build()
    cv2.imwrite("a.png", some_pixels(4, 5, 1))
    (here / "labels.txt").write_text("one\n")
    assert main(["classify", *words]) == 1
    wrong = [line for line in capsys.readouterr().err.splitlines() if line.startswith("poseidon: error: ")]
    assert len(wrong) == 1
    assert expected in wrong[0]
