"""What Data and ImageData have in common: records of a source, in order, transformed.

`shared_file_system` says where several workers read: true, all from `source`, each its own records; false, worker k
from `source_k`; not said, from `source` if it is there. `rand_skip` starts up to that many records later, all workers
alike.
"""

from __future__ import annotations

import glob
import os

from poseidon.data.batch import RecordBatches
from poseidon.data.shard import Order, Share, SourceChoice, Stream, choose_source
from poseidon.data.source import RecordSource
from poseidon.data.transformer import Transformer
from poseidon.net.layer import Shape
from poseidon.net.layers.prefetched import MakeBatch, PrefetchedLayer
from poseidon.spec import caffe_pb2


class RecordLayer(PrefetchedLayer):
    """Base of Data and ImageData; see the module's docstring."""

    _source: RecordSource | None = None

    # -- to be written by each layer --------------------------------------------------------------------------------
    @property
    def options(self) -> caffe_pb2.DataParameter | caffe_pb2.ImageDataParameter:
        raise NotImplementedError

    def open_source(self, path: str) -> RecordSource:
        raise NotImplementedError

    @property
    def shuffles(self) -> bool:
        return False

    # -- the layer --------------------------------------------------------------------------------------------------
    @property
    def batch_size(self) -> int:
        return self.options.batch_size

    def record_shape(self) -> Shape:
        if not self.options.source:
            raise self.error("source must be given")
        self._transformer = Transformer(self.transform_options())
        self._source = self.open_source(self._any_source())
        order = self._order(len(self._source))
        return self._transformer.shape(self._source.get(order.record(0)))

    def open_batches(self) -> MakeBatch:
        choice = self._choice(self.share)
        if self._source is None or self._source.path != choice.path:
            self.close_source()
            self._source = self.open_source(choice.path)
        stream = Stream(self._source, self._order(len(self._source)), self.share.num_workers if choice.is_part else 1)
        batches = RecordBatches(
            stream, self._transformer, self.share, self.batch_size, self.key_for("transform"), self.memory
        )
        return batches.make

    def close_source(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    @property
    def reads_own_part(self) -> bool:
        return self._choice(self.share).is_part

    @property
    def _shared(self) -> bool | None:
        options = self.options
        return options.shared_file_system if options.HasField("shared_file_system") else None

    def _any_source(self) -> str:
        """A source to learn the shape from, before it is known which worker this is."""
        source = self.options.source
        if os.path.exists(source):
            return source
        parts = sorted(glob.glob(f"{glob.escape(source)}_[0-9]*"))
        return parts[0] if parts else self._choice(Share()).path

    def _choice(self, share: Share) -> SourceChoice:
        return choose_source(self.options.source, self._shared, share)

    def _order(self, length: int) -> Order:
        most = self.options.rand_skip
        skip = self.key_for("rand_skip")(0) % most if most else 0
        return Order(length, skip, self.key_for("shuffle") if self.shuffles else None)
