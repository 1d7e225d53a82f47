"""WindowFile: windows of images, as R-CNN lists them. For each image:

    # image_index
    path of the image                   after root_folder
    channels                            3
    height
    width
    number of windows
    label overlap x1 y1 x2 y2           one line per window; both corners belong to it

A window whose overlap with an object is at least fg_threshold is foreground and has a label above 0; one below
bg_threshold is background and gets label 0; the others are not used. The index and the size of an image are not used
either: its windows are those listed below it, and its size is that of the file.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from poseidon.data.decode import decode
from poseidon.data.image_list import read_bytes
from poseidon.data.source import checked_label
from poseidon.errors import DataError

NUM_CHANNELS = 3


@dataclass(frozen=True, slots=True)
class WindowFileOptions:
    """As in window_data_param. `cache_images` keeps the image files, still encoded, in memory."""

    fg_threshold: float = 0.5
    bg_threshold: float = 0.5
    root_folder: str = ""
    cache_images: bool = False


@dataclass(frozen=True, slots=True)
class ListedImage:
    """The path of an image, and where the window file names it."""

    path: str
    where: str


class WindowFile:
    """The images of a window file, and its foreground and background windows as rows (image, label, x1, y1, x2, y2)."""

    def __init__(self, path: str, options: WindowFileOptions) -> None:
        self.path = path
        self.images: list[ListedImage] = []
        foreground: list[np.ndarray] = []
        background: list[np.ndarray] = []
        for image, windows in _read_window_file(path):
            index = len(self.images)
            path_of_image = options.root_folder + image.path
            self.images.append(ListedImage(path_of_image, f"{image.where}: {path_of_image}"))
            overlap = windows[:, 1].astype(np.float32)
            rows = np.column_stack([np.full(len(windows), index), windows[:, 0], windows[:, 2:]]).astype(np.int32)
            is_fg = overlap >= np.float32(options.fg_threshold)
            is_bg = ~is_fg & (overlap < np.float32(options.bg_threshold))
            if (rows[is_fg, 1] <= 0).any():
                raise DataError(f"{image.where}: a foreground window needs a label above 0 (0 is the background)")
            rows[is_bg, 1] = 0
            foreground.append(rows[is_fg])
            background.append(rows[is_bg])
        self.foreground = np.concatenate(foreground)
        self.background = np.concatenate(background)
        self._cached = [read_bytes(image.path, image.where) for image in self.images] if options.cache_images else None

    def pixels(self, image_index: int) -> np.ndarray:
        """An image in color, as uint8 of shape (height, width, 3)."""
        image = self.images[image_index]
        encoded = read_bytes(image.path, image.where) if self._cached is None else self._cached[image_index]
        return decode(encoded, True, image.where)


def _read_window_file(path: str) -> Iterator[tuple[ListedImage, np.ndarray]]:
    """The images with their windows, rows (label, overlap, x1, y1, x2, y2) of float64."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = _Lines(path, file)
            if not lines.more():
                raise DataError(f"{path}: the window file is empty")
            while lines.more():
                yield lines.image()
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror})") from None


class _Lines:
    """The lines of a window file, with their numbers."""

    def __init__(self, path: str, lines: Iterator[str]) -> None:
        self._path = path
        self._lines = lines
        self._number = 0
        self._ahead: str | None = None

    def more(self) -> bool:
        """Whether there is another line that is not blank; blank ones in front of it are passed over."""
        while self._ahead is None or (self._ahead and not self._ahead.strip()):
            self._ahead = next(self._lines, "")
            self._number += 1
        return self._ahead != ""

    def image(self) -> tuple[ListedImage, np.ndarray]:
        header = self._take("`# image_index`").split()
        if len(header) != 2 or header[0] != "#":
            raise self._wrong("`# image_index`", " ".join(header))
        path = self._take("the path of an image")
        image = ListedImage(path, f"{self._path}:{self._number}")
        num_channels = self._integer("a number of channels")
        if num_channels != NUM_CHANNELS:
            raise self._wrong(f"{NUM_CHANNELS} channels (images are read in color)", str(num_channels))
        self._integer("the height of the image")
        self._integer("the width of the image")
        num_windows = self._integer("the number of windows")
        return image, self._windows(num_windows)

    def _windows(self, count: int) -> np.ndarray:
        first = self._number + 1
        lines = list(itertools.islice(self._lines, min(count, sys.maxsize)))
        self._number += len(lines)
        with warnings.catch_warnings():
            # If not all of it is numbers, NumPy warns and stops there, and will raise one day; _blame finds the line.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                values = np.fromstring(" ".join(lines), dtype=np.float64, sep=" ")
            except ValueError:
                values = np.empty(0)
        if values.size != 6 * count or not _are_windows(values.reshape(-1, 6)):
            self._blame(lines, first, count)
        windows = values.reshape(count, 6)
        for label in np.unique(windows[:, 0]):
            checked_label(int(label), f"{self._path}:{first}")
        return windows

    def _blame(self, lines: list[str], first: int, count: int) -> NoReturn:
        for number, line in enumerate(lines, start=first):
            if not _is_window(line):
                self._number = number
                raise self._wrong("`label overlap x1 y1 x2 y2`, integers but for the overlap", line.strip())
        raise DataError(
            f"{self._path}:{self._number}: expected {count} windows, got {len(lines)}; the file is truncated"
        )

    def _integer(self, what: str) -> int:
        text = self._take(what)
        if not text.isdecimal():
            raise self._wrong(what, text)
        return int(text)

    def _take(self, what: str) -> str:
        if self._ahead is not None:
            line, self._ahead = self._ahead, None
        else:
            line = next(self._lines, "")
            self._number += 1
        if not line.strip():
            raise self._wrong(what, "a blank line" if line else "the end of the file")
        return line.strip()

    def _wrong(self, expected: str, got: str) -> DataError:
        return DataError(f"{self._path}:{self._number}: expected {expected}, got {got!r}")


def _are_windows(values: np.ndarray) -> bool:
    integers = values[:, [0, 2, 3, 4, 5]]
    return bool(np.isfinite(values).all() and (integers == np.rint(integers)).all() and (abs(integers) < 2**31).all())


def _is_window(line: str) -> bool:
    try:
        values = np.array([float(word) for word in line.split()])
    except ValueError:
        return False
    return values.size == 6 and _are_windows(values.reshape(1, 6))
