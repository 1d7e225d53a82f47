"""What Data and ImageData have in common: records of a source, in order, transformed.

`shared_file_system` says where several workers read: true, all from `source`, each its own records; false, worker k
from `source_k`; not said, from `source` if it is there. `rand_skip` starts up to that many records later, all workers
alike.
"""

from __future__ import annotations

import glob
import os
from abc import abstractmethod
from collections.abc import Callable

from poseidon.data.batch import RecordBatches
from poseidon.data.shard import Order, Share, SourceChoice, Stream, choose_source
from poseidon.data.source import RecordSource
from poseidon.data.transformer import Transformer
from poseidon.net.layer import Shape
from poseidon.net.layers.prefetched import MakeBatch, PrefetchedLayer
from poseidon.spec import caffe_pb2

# Makes one source of all workers' sources; the flag says whether each has a part of its own.
Spread = Callable[[RecordSource, bool], RecordSource]


class RecordLayer(PrefetchedLayer):
    """Base of Data and ImageData; see the module's docstring."""

    _source: RecordSource | None = None
    _kept: RecordSource | None = None  # by all workers together, in memory

    # -- to be written by each layer --------------------------------------------------------------------------------
    @property
    @abstractmethod
    def options(self) -> caffe_pb2.DataParameter | caffe_pb2.ImageDataParameter: ...

    @abstractmethod
    def open_source(self, path: str) -> RecordSource: ...

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
        if self._kept is not None:
            stream = Stream(self._kept, self._order(len(self._kept)))
        else:
            is_part = self._choice(self.share).is_part
            source = self._own_source()
            stream = Stream(source, self._order(len(source)), self.share.num_workers if is_part else 1)
        batches = RecordBatches(
            stream, self._transformer, self.share, self.batch_size, self.key_for("transform"), self.memory
        )
        return batches.make

    def keep(self, spread: Spread | None) -> None:
        """From now on records come from what `spread` makes of this worker's source, shuffled; None: as before."""
        self.seek(self.position())  # nothing read ahead stays
        self._kept = None if spread is None else spread(self._own_source(), self._choice(self.share).is_part)

    def _own_source(self) -> RecordSource:
        path = self._choice(self.share).path
        if self._source is None or self._source.path != path:
            self.close_source()
            self._source = self.open_source(path)
        return self._source

    def close_source(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    @property
    def reads_own_part(self) -> bool:
        return self._kept is None and self._choice(self.share).is_part

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
        shuffles = self.shuffles or self._kept is not None
        return Order(length, skip, self.key_for("shuffle") if shuffles else None)
