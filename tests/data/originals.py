"""Small originals of the data sets, written from the description of their formats."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from pathlib import Path

Labelled = list[tuple[int, bytes]]


def some_images(count: int, num_bytes: int, seed: int) -> Labelled:
    """(label, pixels) pairs."""
    chance = random.Random(seed)
    return [(chance.randrange(10), chance.randbytes(num_bytes)) for _ in range(count)]


def idx_images(images: Labelled, rows: int, columns: int, magic: int = 0x00000803) -> bytes:
    header = b"".join(number.to_bytes(4, "big") for number in (magic, len(images), rows, columns))
    return header + b"".join(pixels for _, pixels in images)


def idx_labels(images: Labelled, magic: int = 0x00000801) -> bytes:
    return magic.to_bytes(4, "big") + len(images).to_bytes(4, "big") + bytes(label for label, _ in images)


def idx_files(train: Labelled, test: Labelled, rows: int, columns: int) -> dict[str, bytes]:
    return {
        "train-images-idx3-ubyte": idx_images(train, rows, columns),
        "train-labels-idx1-ubyte": idx_labels(train),
        "t10k-images-idx3-ubyte": idx_images(test, rows, columns),
        "t10k-labels-idx1-ubyte": idx_labels(test),
    }


def cifar_files(batches: list[Labelled]) -> dict[str, bytes]:
    """Six batches: five to train with, one to test."""
    names = [*(f"data_batch_{number}.bin" for number in (1, 2, 3, 4, 5)), "test_batch.bin"]
    return {
        name: b"".join(bytes([label]) + pixels for label, pixels in batch)
        for name, batch in zip(names, batches, strict=True)
    }


def write_files(folder: Path, files: dict[str, bytes], packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(contents))
        else:
            (folder / name).write_bytes(contents)
    return folder


def tar_gz(files: dict[str, bytes], inner_folder: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, contents in files.items():
            member = tarfile.TarInfo(f"{inner_folder}/{name}")
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    return packed.getvalue()
