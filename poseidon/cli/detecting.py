"""Windows of images and what a net makes of them, by way of caffe.Detector; an image at a time."""

from __future__ import annotations

import argparse
import os
import time

import numpy as np

import caffe
from poseidon.cli.classifying import input_shape, mean_of, note
from poseidon.cli.window_table import EDGES, WindowTable, read_windows, write_scores
from poseidon.errors import DataError, UsageError


def detect(found: argparse.Namespace) -> None:
    """Reads windows, scores them, writes the scores."""
    note("CPU mode (import caffe has no other: --gpu changes nothing)" if found.gpu else "CPU mode")
    mode = found.crop_mode or ("selective_search" if found.windows.endswith(".txt") else "list")
    detector = _detector(found)
    note(f"Loading {found.windows}")
    start = time.monotonic()
    if mode == "selective_search":
        table, scores = _proposed(detector, found.windows)
    else:
        table = read_windows(found.windows)
        scores = _scores(detector, table)
    note(f"Processed {len(scores)} windows in {time.monotonic() - start:.2f} s.")
    write_scores(table, scores, found.output)
    note(f"Saved to {found.output}.")


def _detector(found: argparse.Namespace) -> caffe.Detector:
    num_channels, height, width = input_shape(found.model_def)
    if num_channels != 3:
        raise UsageError(
            f"{found.model_def} takes images of {num_channels} channels; detect has those of colour images"
        )
    if 2 * found.context_pad >= min(height, width):
        raise UsageError(
            f"--context-pad={found.context_pad} leaves nothing of an input of {height} x {width}; give less than half"
        )
    mean = mean_of(found.mean_file)
    if mean is not None and mean.ndim == 3:  # of windows of any place only the mean colour is known
        mean = mean.mean((1, 2))
    try:
        return caffe.Detector(
            found.model_def,
            found.pretrained_model,
            mean=mean,
            input_scale=found.input_scale,
            raw_scale=found.raw_scale,
            channel_swap=found.channel_swap or None,
            context_pad=found.context_pad,
        )
    except ValueError as problem:  # how pycaffe refuses a mean
        raise UsageError(f"{found.mean_file}: {problem}") from None


def _scores(detector: caffe.Detector, table: WindowTable) -> np.ndarray:
    """A row per window, in the table's order."""
    if not table.filenames:
        raise DataError(f"{table.path}: has no windows")
    rows: list[np.ndarray | None] = [None] * len(table.filenames)
    for name, members in table.by_file().items():
        if not os.path.exists(name):
            raise DataError(f"{table.path}: names {name!r}, which is not there; a relative path starts where this runs")
        image = caffe.io.load_image(name)
        for row in members:
            _check_inside(table.windows[row], image, name)
        for row, prediction in zip(members, _predictions(detector, image, table.windows[members]), strict=True):
            rows[row] = prediction
    return np.array(rows, np.float32).reshape(len(rows), -1)


def _predictions(detector: caffe.Detector, image: np.ndarray, windows: np.ndarray) -> np.ndarray:
    name = detector.inputs[0]
    crops = [detector.transformer.preprocess(name, detector.crop(image, window)) for window in windows]
    outputs = detector.forward_all(None, **{name: np.stack(crops)})[detector.outputs[0]]
    return outputs.reshape(len(windows), -1)


def _check_inside(window: np.ndarray, image: np.ndarray, name: str) -> None:
    if window[2] > image.shape[0] or window[3] > image.shape[1]:
        edges = ", ".join(f"{edge} {value}" for edge, value in zip(EDGES, window, strict=True))
        raise DataError(
            f"{name}: the window {edges} reaches beyond the image, which is {image.shape[0]} x {image.shape[1]}"
        )


def _proposed(detector: caffe.Detector, path: str) -> tuple[WindowTable, np.ndarray]:
    """Windows that Selective Search finds in the images a list names, with their scores."""
    try:
        with open(path, encoding="utf-8") as file:
            names = [line.strip() for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{path}: cannot be read as a list of images: {problem}") from None
    found = detector.detect_selective_search(names)
    if not found:
        raise DataError(f"{path}: names no image in which Selective Search finds a window")
    windows = np.array([entry["window"] for entry in found], np.int64).reshape(-1, 4)
    scores = np.array([entry["prediction"] for entry in found], np.float32).reshape(len(found), -1)
    return WindowTable(path, tuple(entry["filename"] for entry in found), windows), scores
