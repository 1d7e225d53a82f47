"""CIFAR-10 in its binary version.

    data_batch_1.bin … data_batch_5.bin, test_batch.bin
    each a sequence of records of 3073 bytes: label, then 32 × 32 red, green and blue, row by row

They come in cifar-10-binary.tar.gz, in the folder cifar-10-batches-bin; the archive, that folder, the folder around it
and the files themselves are all taken. The Python version of the data set is pickled, and nothing is unpickled here.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from poseidon.data.datasets.images import LabelledImages, Splits
from poseidon.data.datasets.original import candidates, opened, pick, read_at_most
from poseidon.errors import DataError

TRAIN_NAMES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_NAME = "test_batch.bin"
INNER_FOLDER = "cifar-10-batches-bin"
ARCHIVE = "cifar-10-binary.tar.gz"

NUM_CLASSES = 10
_SHAPE = (3, 32, 32)
_RECORD_BYTES = 1 + 3 * 32 * 32
# The originals have 10 000 records; what is larger than this is not one of them.
_MOST_BYTES = 1 << 30


def read_cifar10_splits(sources: Sequence[Path]) -> Splits:
    """The data set in these folders, files or archives."""
    paths = list(candidates(sources, INNER_FOLDER))
    files = [path for path in paths if path.name.endswith((".bin", ".bin.gz"))]
    archives = [path for path in paths if path.name.endswith((".tar.gz", ".tgz", ".tar"))]
    if not files and archives:
        return _read_archive(archives)

    def read(name: str) -> LabelledImages:
        path = pick(sources, f"{name} or {ARCHIVE}", files, lambda found: found.removesuffix(".gz") == name)
        with opened(path) as file:
            return _read_batch(file, str(path))

    return Splits(_joined([read(name) for name in TRAIN_NAMES]), read(TEST_NAME))


def _read_archive(archives: Sequence[Path]) -> Splits:
    path = next((path for path in archives if "binary" in path.name), archives[0])
    batches: dict[str, LabelledImages] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                if name in (*TRAIN_NAMES, TEST_NAME) and (file := archive.extractfile(member)) is not None:
                    with file:
                        batches[name] = _read_batch(file, f"{path}: {name}")
    except (tarfile.TarError, EOFError, zlib.error) as problem:
        raise DataError(f"{path}: damaged archive ({problem}); download or copy the file again") from None
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror or problem})") from None
    missing = [name for name in (*TRAIN_NAMES, TEST_NAME) if name not in batches]
    if missing:
        raise DataError(f"{path}: has no {missing[0]}; expected CIFAR-10's binary version, {ARCHIVE}")
    return Splits(_joined([batches[name] for name in TRAIN_NAMES]), batches[TEST_NAME])


def _read_batch(file: IO[bytes], where: str) -> LabelledImages:
    data = read_at_most(file, _MOST_BYTES)
    num_records, rest = divmod(len(data), _RECORD_BYTES)
    if rest or not num_records:
        raise DataError(
            f"{where}: expected a whole number of records of {_RECORD_BYTES} bytes, got {len(data)} bytes; "
            f"it is truncated, or not CIFAR-10's binary version"
        )
    records = np.frombuffer(data, np.uint8).reshape(num_records, _RECORD_BYTES)
    labels = records[:, 0]
    if labels.max() >= NUM_CLASSES:
        first = int(np.argmax(labels >= NUM_CLASSES))
        raise DataError(
            f"{where}: record {first} has label {labels[first]}, expected 0 to {NUM_CLASSES - 1}; "
            f"it is damaged, or not CIFAR-10's binary version"
        )
    return LabelledImages(records[:, 1:].reshape(num_records, *_SHAPE), labels)


def _joined(batches: Sequence[LabelledImages]) -> LabelledImages:
    return LabelledImages(
        np.concatenate([batch.pixels for batch in batches]), np.concatenate([batch.labels for batch in batches])
    )
