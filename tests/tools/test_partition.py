"""partition_data: every record once, in turn, with its key and value; all parts or none."""

from __future__ import annotations

import plyvel
import pytest

from poseidon.data.database import BACKENDS
from poseidon.errors import DataError, UsageError
from poseidon.tools.partition import Part, partition_data
from tests.tools.kit import Told, read_database, write_lmdb

RECORDS = [(b"%08d" % n, bytes([n % 251]) * (n % 7)) for n in range(23)]


@pytest.fixture(params=BACKENDS)
def backend(request, tmp_path) -> str:
    if request.param == "lmdb":
        write_lmdb(tmp_path / "db", RECORDS)
    else:
        database = plyvel.DB(str(tmp_path / "db"), create_if_missing=True)
        for key, value in RECORDS:
            database.put(key, value)
        database.close()
    return request.param


@pytest.mark.parametrize("num_parts", [1, 2, 5, 23])
def test_round_robin(backend, num_parts, tmp_path):
    before = read_database(tmp_path / "db", backend)
    told = Told()
    parts = partition_data(f"{tmp_path}/db/", backend, num_parts, told)
    assert parts == [Part(f"{tmp_path}/db_{k}", len(RECORDS[k::num_parts])) for k in range(num_parts)]
    for k in range(num_parts):
        assert read_database(tmp_path / f"db_{k}", backend) == RECORDS[k::num_parts]
    assert read_database(tmp_path / "db", backend) == before
    assert told.steps[-1] == ("dealing", 23, 23)
    assert [line for line in told.lines if "New DB" in line] == [f"I New DB path={part.path}" for part in parts]


def test_all_parts_or_none(backend, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        partition_data(str(tmp_path / "db"), backend, 3, Told(interrupt_at=20))
    assert [path.name for path in tmp_path.iterdir()] == ["db"]


def test_nothing_is_overwritten(backend, tmp_path):
    (tmp_path / "db_2").mkdir()
    with pytest.raises(DataError, match="db_2: exists already"):
        partition_data(str(tmp_path / "db"), backend, 3, Told())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db", "db_2"]


def test_parts_without_records(backend, tmp_path):
    with pytest.raises(DataError, match="has 23 records, fewer than 24 parts"):
        partition_data(str(tmp_path / "db"), backend, 24, Told())
    with pytest.raises(UsageError, match="expected 1 to 1024 parts, got 5000"):
        partition_data(str(tmp_path / "db"), backend, 5000, Told())
