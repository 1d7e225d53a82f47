"""Images and what a net takes them for, by way of caffe.Classifier."""

from __future__ import annotations

import argparse
import glob
import io
import os
import sys
import time
from collections.abc import Sequence

import numpy as np

import caffe
from poseidon.data.mean import read_mean
from poseidon.errors import DataError, UsageError
from poseidon.spec import filter_net, read_net
from poseidon.spec.caffe_pb2 import TEST
from poseidon.spec.files import write_atomically


def classify(found: argparse.Namespace) -> None:
    """Loads images, runs the net, shows the best classes of each, saves its output."""
    note("CPU mode (import caffe has no other: --gpu changes nothing)" if found.gpu else "CPU mode")
    classifier = classifier_of(found)
    names, images = _load(found, classifier)
    labels = labels_of(found.labels_file)
    note(f"Classifying {len(images)} inputs.")
    start = time.monotonic()
    predictions = classifier.predict(images, not found.center_only)
    note(f"Done in {time.monotonic() - start:.2f} s.")
    _show(names, predictions.reshape(len(names), -1), labels, found.top)
    if found.output:
        note(f"Saving results into {found.output}")
        _save(found.output, predictions)


def note(line: str) -> None:
    """What classify.py says on the way; results alone go to standard output."""
    print(line, file=sys.stderr, flush=True)


# -- input ------------------------------------------------------------------------------------------------------------
def classifier_of(found: argparse.Namespace) -> caffe.Classifier:
    """The net, which must take images no larger than those it will be given."""
    num_channels, height, width = input_shape(found.model_def)
    if found.images_dim[0] < height or found.images_dim[1] < width:
        raise UsageError(
            f"{found.model_def} takes images of {height} x {width}; --images-dim is to be at least that, got "
            f"{found.images_dim[0]},{found.images_dim[1]}"
        )
    try:
        return caffe.Classifier(
            found.model_def,
            found.pretrained_model,
            image_dims=found.images_dim,
            mean=mean_of(found.mean_file),
            input_scale=found.input_scale,
            raw_scale=found.raw_scale,
            channel_swap=found.channel_swap if found.channel_swap and num_channels > 1 else None,
        )
    except ValueError as problem:  # how pycaffe refuses a mean
        raise UsageError(f"{found.mean_file}: {problem}") from None


def mean_of(path: str) -> np.ndarray | None:
    """The mean to subtract: a .npy or a .binaryproto; None without a path."""
    if not path:
        return None
    return array_of(path) if path.endswith(".npy") else read_mean(path)


def input_shape(model: str) -> tuple[int, int, int]:
    """Channels, height and width of the net's first input."""
    for layer in filter_net(read_net(model), TEST).net.layer:
        if layer.type == "Input" and layer.input_param.shape:
            shape = tuple(layer.input_param.shape[0].dim)
            if len(shape) == 4 and min(shape) > 0:
                return shape[1], shape[2], shape[3]
    raise UsageError(f"{model} has no input of N x channels x height x width; give the net's deploy.prototxt")


def _load(found: argparse.Namespace, classifier: caffe.Classifier) -> tuple[list[str], list[np.ndarray]]:
    """The names of the images, and the images: gray ones for a net of one channel."""
    num_channels = classifier.blobs[classifier.inputs[0]].shape[1]
    if os.path.isdir(found.input):
        note(f"Loading folder: {found.input}")
        paths = sorted(glob.glob(os.path.join(glob.escape(found.input), f"*.{glob.escape(found.ext)}")))
        if not paths:
            raise DataError(f"{found.input}: has no *.{found.ext}; say with --ext what its images end in")
    else:
        note(f"Loading file: {found.input}")
        paths = [found.input]
    if found.input.endswith("npy"):
        array = array_of(found.input)
        shape, images = array.shape, list(array) if array.ndim else []
        names = [f"{found.input}[{number}]" for number in range(len(images))]
    else:
        names = paths
        images = [caffe.io.load_image(path, color=num_channels != 1) for path in paths]
        shape = (len(images), *images[0].shape)
    if len(shape) != 4 or not shape[0] or shape[3] != num_channels:
        raise DataError(
            f"{found.input}: expected images of height x width x {num_channels}, as {found.model_def} takes them, got "
            f"{' x '.join(map(str, shape[1:]))}"
        )
    return names, [image.astype(np.float32) for image in images]


def array_of(path: str) -> np.ndarray:
    """The array in a .npy file."""
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as problem:
        raise DataError(f"{path}: is not an array that NumPy can read ({problem})") from None


def labels_of(path: str) -> list[str]:
    """The names of the classes, one a line."""
    if not path:
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        return [line.strip() for line in file.read().splitlines()]


# -- output -----------------------------------------------------------------------------------------------------------
def _show(names: Sequence[str], predictions: np.ndarray, labels: Sequence[str], num_shown: int) -> None:
    """A line per class, the best first; images are told apart by a line each."""
    if labels and len(labels) < predictions.shape[1]:
        raise UsageError(f"the net has {predictions.shape[1]} classes, the labels file only {len(labels)}")
    for name, scores in zip(names, predictions, strict=True):
        print(f"{name}:")
        for index in np.argsort(-scores, kind="stable")[:num_shown]:
            print(f"  {scores[index]:.4f}  {labels[index] if labels else f'class {index}'}")


def _save(path: str, predictions: np.ndarray) -> None:
    contents = io.BytesIO()
    np.save(contents, predictions)
    write_atomically(contents.getvalue(), path if path.endswith(".npy") else f"{path}.npy")
