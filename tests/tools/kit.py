"""What the tests of tools share: golden data, images, databases read without our readers, and whom tools tell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import lmdb
import numpy as np
import plyvel

from poseidon.spec import caffe_pb2

DATA = Path(__file__).parents[1] / "golden" / "formats" / "data"
DATA_CASES = sorted(path.name for path in DATA.iterdir())


def golden_case(name: str, folder: Path) -> dict[str, list[str]]:
    """Copies a case's images, list and database to a folder; returns the commands that made it in Caffe."""
    for part in ("images", "db"):
        shutil.copytree(DATA / name / part, folder / part)
        for path in (folder / part, *(folder / part).rglob("*")):
            path.chmod(0o755)
    shutil.copy(DATA / name / "list.txt", folder)
    return json.loads((DATA / name / "meta.json").read_text())


def read_lmdb(path: Path) -> list[tuple[bytes, bytes]]:
    with lmdb.open(str(path), readonly=True, lock=False) as environment, environment.begin() as transaction:
        return list(transaction.cursor())


def read_leveldb(path: Path) -> list[tuple[bytes, bytes]]:
    database = plyvel.DB(str(path))
    try:
        return list(database.iterator())
    finally:
        database.close()


def read_database(path: Path, backend: str) -> list[tuple[bytes, bytes]]:
    return read_lmdb(path) if backend == "lmdb" else read_leveldb(path)


def write_lmdb(path: Path, records: list[tuple[bytes, bytes]]) -> None:
    with lmdb.open(str(path), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for key, value in records:
            transaction.put(key, value)


def datums(path: Path, backend: str = "lmdb") -> dict[str, caffe_pb2.Datum]:
    return {key.decode(): caffe_pb2.Datum.FromString(value) for key, value in read_database(path, backend)}


def some_pixels(height: int, width: int, seed: int) -> np.ndarray:
    """An image as OpenCV has it: height x width x blue, green, red."""
    return np.random.RandomState(seed).randint(0, 256, (height, width, 3)).astype(np.uint8)


def write_images(folder: Path, sizes: dict[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    """Image files of these sizes; what is in them by name."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for seed, (name, (height, width)) in enumerate(sizes.items()):
        made[name] = some_pixels(height, width, seed)
        encoded = cv2.imencode(f".{name.rpartition('.')[2]}", made[name])[1].tobytes()
        (folder / name).write_bytes(encoded)
    return made


class Told:
    """Remembers what it is told; raises at the n-th progress if asked to."""

    def __init__(self, interrupt_at: int = 0) -> None:
        self.lines: list[str] = []
        self.steps: list[tuple[str, int, int]] = []
        self._interrupt_at = interrupt_at

    def say(self, place: str, text: str, severity: str = "I") -> None:
        self.lines.append(f"{severity} {text}")

    def progress(self, what: str, done: int, total: int) -> None:
        self.steps.append((what, done, total))
        if done == self._interrupt_at:
            raise KeyboardInterrupt
