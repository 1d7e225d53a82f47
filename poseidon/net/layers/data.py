"""Data: batches of the Datums of a database, in the order of its keys, round and round.

    backend      LMDB, or LEVELDB (which is Caffe's default)
    top 0        N × C × H × W, transformed (poseidon/data/transformer.py)
    top 1        N labels; may be left out

An encoded Datum is decoded as it was stored, or in color or gray if transform_param says so (force_color, force_gray;
data_param's older force_encoded_color is the first). Datums that are not encoded are not touched by those.
"""

from __future__ import annotations

from poseidon.data.datum import DatumSource
from poseidon.data.leveldb import LevelDbStore
from poseidon.data.lmdb import LmdbStore
from poseidon.data.source import RecordSource
from poseidon.net.layer import between
from poseidon.net.layers.records import RecordLayer
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2


@register("Data")
class Data(RecordLayer):
    tops = between(1, 2)

    @property
    def options(self) -> caffe_pb2.DataParameter:
        return self.spec.data_param

    def open_source(self, path: str) -> RecordSource:
        transform = self.spec.transform_param
        color = True if transform.force_color or self.options.force_encoded_color else None
        store = LmdbStore(path) if self.options.backend == caffe_pb2.DataParameter.LMDB else LevelDbStore(path)
        return DatumSource(store, False if transform.force_gray else color)
