"""LMDB and LevelDB as numbered records: any order of access, several threads, several readers, damage."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poseidon.data.leveldb import LevelDbStore
from poseidon.data.lmdb import _OPEN, LmdbStore
from poseidon.errors import DataError, UsageError
from tests.data.make import write_leveldb, write_lmdb

FORMATS = Path(__file__).resolve().parent.parent / "golden" / "formats" / "data"
VALUES = [f"value {number}".encode() * (1 + number % 5) for number in range(600)]
EXPECTED = [(f"{number:08d}".encode(), value) for number, value in enumerate(VALUES)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    pytest.importorskip("plyvel")
    folder = tmp_path_factory.mktemp("databases")
    return {"lmdb": write_lmdb(folder / "lmdb", VALUES), "leveldb": write_leveldb(folder / "leveldb", VALUES)}


@pytest.fixture(params=[LmdbStore, LevelDbStore])
def store(request, paths):
    opened = request.param(paths["lmdb" if request.param is LmdbStore else "leveldb"])
    yield opened
    opened.close()


def pair(store, index: int) -> tuple[bytes, bytes]:
    return store.read(index, lambda key, value: (key, bytes(value)))


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_in_order(store):
    assert len(store) == len(VALUES)
    assert [pair(store, index) for index in range(len(store))] == EXPECTED


@settings(max_examples=30)
@given(data=st.data())
def test_in_any_order(paths, data):
    for store in (LmdbStore(paths["lmdb"]), LevelDbStore(paths["leveldb"])):
        for index in data.draw(st.lists(st.integers(0, len(VALUES) - 1), max_size=12)):
            assert pair(store, index) == EXPECTED[index]
        store.close()


def test_out_of_range(store):
    for index in (-1, len(VALUES)):
        with pytest.raises(IndexError, match="of 600"):
            pair(store, index)


def test_several_threads(store):
    wrong: list[int] = []

    def read(start: int) -> None:
        wrong.extend(index for index in range(start, len(VALUES), 3) if pair(store, index) != EXPECTED[index])

    threads = [threading.Thread(target=read, args=(start,)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_opened_twice_and_closed_once(store):
    other = type(store)(store.path)
    assert pair(other, 5) == pair(store, 5)
    other.close()
    assert pair(store, 6) == EXPECTED[6]
    with pytest.raises(DataError, match="read after it was closed"):
        pair(other, 5)


def test_two_processes(store):
    pair(store, 0)
    kind = type(store)
    code = (
        f"from {kind.__module__} import {kind.__name__}\n"
        f"store = {kind.__name__}({store.path!r})\n"
        "print(store.read(41, lambda key, value: bytes(value)))\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == repr(VALUES[41])


@pytest.mark.parametrize("name", ["leveldb_gray_raw_log", "leveldb_color_raw_compacted", "lmdb_color_raw"])
def test_reading_changes_nothing(name, tmp_path):
    folder = tmp_path / "db"
    shutil.copytree(FORMATS / name / "db", folder)
    before = digest(folder)
    store = (LmdbStore if name.startswith("lmdb") else LevelDbStore)(str(folder))
    assert len([pair(store, index) for index in range(len(store))]) == 20
    store.close()
    assert digest(folder) == before


def test_the_temporary_folder_goes_away(paths):
    store = LevelDbStore(paths["leveldb"])
    mirror = store._mirror.name
    assert os.path.isdir(mirror)
    store.close()
    assert not os.path.exists(mirror)


def test_without_plyvel(paths, monkeypatch):
    monkeypatch.setitem(sys.modules, "plyvel", None)
    with pytest.raises(UsageError, match=r'pip install "poseidon-dl\[leveldb\]"'):
        LevelDbStore(paths["leveldb"])


def test_missing_and_mistaken_folders(paths, tmp_path):
    for kind, expected in ((LmdbStore, "no such LMDB; expected a folder that holds data.mdb"),
                           (LevelDbStore, "no such LEVELDB; expected a folder that holds CURRENT")):  # fmt: skip
        with pytest.raises(DataError, match=expected):
            kind(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="expected LMDB, got LEVELDB; set `backend: LEVELDB` in data_param"):
        LmdbStore(paths["leveldb"])
    with pytest.raises(DataError, match="expected LEVELDB, got LMDB; set `backend: LMDB` in data_param"):
        LevelDbStore(paths["lmdb"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"not a LMDB; expected data.mdb in this folder"):
        LmdbStore(str(tmp_path / "empty"))


@pytest.mark.parametrize("size", [0, 10, 4096, 8192, 20000])
def test_truncated_lmdb(size, tmp_path):
    whole = Path(write_lmdb(tmp_path / "whole", VALUES), "data.mdb").read_bytes()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "data.mdb").write_bytes(whole[:size])
    with pytest.raises(
        DataError, match=r"cut: (not a readable LMDB \(.+\)|the LMDB is truncated; expected at least \d+)"
    ):
        LmdbStore(str(tmp_path / "cut"))


def test_lmdb_as_a_single_file(tmp_path):
    whole = Path(write_lmdb(tmp_path / "folder", VALUES), "data.mdb")
    store = LmdbStore(str(shutil.copy(whole, tmp_path / "alone.mdb")))
    assert pair(store, 7) == EXPECTED[7]


@pytest.mark.parametrize("name", ["leveldb_gray_raw_log", "leveldb_color_raw_compacted"])
def test_damaged_leveldb(name, tmp_path):
    pytest.importorskip("plyvel")
    folder = tmp_path / "db"
    shutil.copytree(FORMATS / name / "db", folder)
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    largest.write_bytes(content)
    with pytest.raises(DataError, match=r"not a readable LevelDB \(.*[Cc]orruption|checksum mismatch"):
        LevelDbStore(str(folder))


def test_opened_again_and_again_on_threads(paths):
    """Stores that are closed or just forgotten while others open the same database."""
    problems: list[Exception] = []

    def open_and_read(number: int) -> None:
        try:
            for turn in range(30):
                store = LmdbStore(paths["lmdb"])
                assert pair(store, turn) == EXPECTED[turn]
                if (turn + number) % 2:
                    store.close()
        except Exception as problem:  # whatever it is, the test is to tell
            problems.append(problem)

    threads = [threading.Thread(target=open_and_read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert os.path.realpath(paths["lmdb"]) not in _OPEN
