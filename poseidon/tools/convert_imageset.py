"""convert_imageset: the images of a list (`path label` lines) into a database of Datums.

    key     %08d_path: the line, counted from 0 after shuffling, and the path as the list has it
    value   channels, height, width, data (planes, blue first), label, encoded: false
            or, when encoded: the image file as data, label, encoded: true

An image is stored encoded if `encoded` says so, as what its name ends in, or as `encode_type`. It is then the file as
it is, color or gray, unless it is resized or of another type: only then it is decoded (as three channels, or one if
`gray`) and encoded again.

Images are decoded ahead on threads; the order of records does not depend on that. An image that cannot be read is told
and left out, its line number is not given to another; `strict` makes that an error.

Shuffling is keyed by `seed`: Caffe draws a fresh one each time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import cv2
import numpy as np

from poseidon.data.database import check_backend, check_new, new_database
from poseidon.data.decode import decode, resize
from poseidon.data.image_list import read_bytes, read_list
from poseidon.data.prefetch import Prefetch, default_num_threads
from poseidon.errors import DataError, UsageError
from poseidon.spec import caffe_pb2, serialize
from poseidon.tools.teller import Teller

_SOURCE = "convert_imageset.cpp"
_AHEAD = 16
_TOLD_EVERY = 1000


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """See the module's docstring. `new_size` is (height, width), None as they are."""

    gray: bool = False
    shuffle: bool = False
    seed: int | None = None
    backend: str = "lmdb"
    new_size: tuple[int, int] | None = None
    check_size: bool = False
    encoded: bool = False
    encode_type: str = ""
    strict: bool = False

    def __post_init__(self) -> None:
        check_backend(self.backend)
        if self.encode_type and _encode(np.zeros((8, 8, 3), np.uint8), self.encode_type) is None:
            raise UsageError(f"OpenCV cannot encode images as {self.encode_type!r}; expected png, jpg, bmp, webp, …")


@dataclass(frozen=True, slots=True)
class Converted:
    num_written: int
    num_left_out: int


@dataclass(frozen=True, slots=True)
class _Image:
    """What became of a line: its Datum and the size (channels, height, width) of its image, or why there is none."""

    name: str
    datum: caffe_pb2.Datum | None = None
    size: tuple[int, int, int] = (0, 0, 0)
    problem: str = ""


def convert_imageset(root_folder: str, list_file: str, target: str, options: ConvertOptions, tell: Teller) -> Converted:
    """Makes the database `target`; an image's path is `root_folder` and the text in the list, joined as they are."""
    check_new(target)
    lines = _lines(list_file, options, tell)
    first: _Image | None = None
    problem = ""
    with new_database(target, options.backend) as database, _images(root_folder, lines, options) as images:
        tell.say(f"db_{options.backend}.cpp:35", f"Opened {options.backend} {target}")
        for index, image in enumerate(images):
            tell.progress("converting", index + 1, len(lines))
            if image.datum is None:
                problem = problem or image.problem
                _leave_out(image.problem, options.strict, tell)
                continue
            first = first or image
            if options.check_size and image.size != first.size:
                raise DataError(
                    f"{root_folder}{image.name}: Incorrect data field size: {_text(image.size)}, expected "
                    f"{_text(first.size)} like {first.name} (check_size); give resize_height and resize_width"
                )
            database.put(f"{index:08d}_{image.name}".encode("utf-8", "surrogateescape"), serialize(image.datum))
            if database.num_records % _TOLD_EVERY == 0:
                tell.say(f"{_SOURCE}:144", f"Processed {database.num_records} files.")
        if first is None:
            raise DataError(f"{list_file}: none of its {len(lines)} images can be read; the first one: {problem}")
    if database.num_records % _TOLD_EVERY:
        tell.say(f"{_SOURCE}:150", f"Processed {database.num_records} files.")
    return Converted(database.num_records, len(lines) - database.num_records)


def _lines(list_file: str, options: ConvertOptions, tell: Teller) -> list[tuple[str, int]]:
    lines = read_list(list_file)
    for number, (_, label) in enumerate(lines, start=1):
        if not -(2**31) <= label < 2**31:
            raise DataError(f"{list_file}:{number}: label {label} is out of range; a Datum's label has 32 bits")
    if options.shuffle:
        tell.say(f"{_SOURCE}:83", "Shuffling data")
        random.Random(options.seed).shuffle(lines)
    tell.say(f"{_SOURCE}:86", f"A total of {len(lines)} images.")
    if options.encode_type and not options.encoded:
        tell.say(f"{_SOURCE}:89", "encode_type specified, assuming encoded=true.")
    return lines


def _leave_out(problem: str, strict: bool, tell: Teller) -> None:
    if strict:
        raise DataError(problem)
    tell.say("io.cpp:80", f"{problem}; left out", "E")


# -- reading images ---------------------------------------------------------------------------------------------------
@contextmanager
def _images(root_folder: str, lines: list[tuple[str, int]], options: ConvertOptions) -> Iterator[Iterator[_Image]]:
    """The images of all lines, in their order, read ahead."""

    def make(index: int) -> _Image:
        if index >= len(lines):
            return _Image("")
        name, label = lines[index]
        return _read(root_folder, name, label, options)

    images = Prefetch(make, _AHEAD, 2 * default_num_threads(_AHEAD))
    try:
        yield (images.take() for _ in lines)
    finally:
        images.close()


def _read(root_folder: str, name: str, label: int, options: ConvertOptions) -> _Image:
    path = root_folder + name
    try:
        contents = read_bytes(path, f"Could not open or find file {path}")
        pixels = decode(contents, not options.gray, f"Could not decode file {path}")
    except DataError as problem:
        return _Image(name, problem=str(problem))
    if options.new_size is not None:
        pixels = resize(pixels, *options.new_size)
    height, width, channels = pixels.shape
    encode_type = options.encode_type or (_extension(name) if options.encoded else "")
    if not encode_type:
        data = pixels.transpose(2, 0, 1).tobytes()
        datum = caffe_pb2.Datum(channels=channels, height=height, width=width, data=data, encoded=False)
    elif options.new_size is None and _is_same_type(_extension(path), encode_type):
        datum = caffe_pb2.Datum(data=contents, encoded=True)
    elif (encoded := _encode(pixels, encode_type)) is not None:
        datum = caffe_pb2.Datum(data=encoded, encoded=True)
    else:
        return _Image(name, problem=f"{path}: OpenCV cannot encode it as {encode_type!r}; give another encode_type")
    datum.label = label
    return _Image(name, datum, (channels, height, width))


def _extension(name: str) -> str:
    """What follows the last dot, in lower case; all of a name without one, as in Caffe."""
    return name.rpartition(".")[2].lower()


def _is_same_type(extension: str, encode_type: str) -> bool:
    wanted = encode_type.lower()
    return extension == wanted or (wanted == "jpg" and extension == "jpeg")


def _encode(pixels: np.ndarray, encode_type: str) -> bytes | None:
    """The image file; None if OpenCV does not know the type, or the image does not suit it."""
    try:
        done, encoded = cv2.imencode(f".{encode_type}", pixels)
    except cv2.error:
        return None
    return encoded.tobytes() if done else None


def _text(size: tuple[int, int, int]) -> str:
    return " x ".join(map(str, size))
