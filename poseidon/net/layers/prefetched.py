"""What Data, ImageData and WindowData have in common: batches made ahead, on threads, in a fixed order.

    top 0    N × C × H × W; a batch has the shape of its first record, as in Caffe
    top 1    N labels, as floats

Beside the contract of a layer:

    layer.shard(rank, num_workers)    which of the samples are this worker's; alone by default. Every P-th one, or, with
                                      `whole_batches`, whole batches, or, with `counts`, parts of unequal length
    layer.reads_own_part              true if they lie in a source of the worker's own (shared_file_system)
    layer.position()                  {"sample": s}, for a snapshot: batches handed out so far end before sample s
    layer.seek(position)              go on from there
    layer.close()                     stop the threads, close the source; a later forward would open it again

The position is the same on all workers, and holds for another number of workers (poseidon/data/shard.py). Crops,
mirrors and shuffles follow from the net's seed and the number of the sample, so the same position and seed give the
same batches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor

from poseidon.data.batch import Batch, BatchMemory
from poseidon.data.mean import read_mean
from poseidon.data.prefetch import Prefetch, default_num_threads
from poseidon.data.shard import Share
from poseidon.data.transformer import TransformOptions
from poseidon.net.draws import key_of
from poseidon.net.layer import Count, Layer, LayerContext, Shape, exactly
from poseidon.spec import caffe_pb2

# The batch that starts at a sample.
MakeBatch = Callable[[int], Batch]


class PrefetchedLayer(Layer):
    """Base of the layers that read labelled records; see the module's docstring."""

    bottoms: ClassVar[Count] = exactly(0)
    tops: ClassVar[Count] = exactly(2)

    def __init__(self, spec: caffe_pb2.LayerParameter, context: LayerContext) -> None:
        super().__init__(spec, context)
        self.share = Share()
        self.memory = BatchMemory(context.dtype)
        self._sample = 0
        self._prefetch: Prefetch[Batch] | None = None

    # -- to be written by each layer --------------------------------------------------------------------------------
    @property
    @abstractmethod
    def batch_size(self) -> int: ...

    @abstractmethod
    def record_shape(self) -> Shape:
        """C × H × W of the first record."""

    @abstractmethod
    def open_batches(self) -> MakeBatch:
        """Opens the source for `self.share`; returns what makes the batch that starts at a sample."""

    def close_source(self) -> None:
        """Closes what `record_shape` and `open_batches` have opened."""

    # -- the layer --------------------------------------------------------------------------------------------------
    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        if self.batch_size < 1:
            raise self.error("batch_size must be given and at least 1")
        if self.spec.data_param.prefetch < 1:
            raise self.error("data_param.prefetch must be at least 1")
        self._first_shape = self.record_shape()

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        num_samples = self.share.num_samples(self.batch_size)
        self.check_room("what is read ahead", (self.spec.data_param.prefetch, num_samples, *self._first_shape))
        return [(num_samples, *self._first_shape), (num_samples,)][: self.num_tops]

    def forward(self) -> Tensor | tuple[Tensor, ...]:
        if self._prefetch is None:
            self._prefetch = self._start()
        try:
            batch = self._prefetch.take()
        except BaseException:  # Ctrl-C too: nothing is skipped, who goes on gets this batch again
            self._stop()
            raise
        self._sample += self.batch_size * self.share.num_workers
        data = batch.data.to(self.context.device, self.context.dtype)
        return data if self.num_tops == 1 else (data, batch.label.to(self.context.device))

    def shard(self, rank: int, num_workers: int, *, whole_batches: bool = False, counts: tuple[int, ...] = ()) -> None:
        self._stop()
        self.share = Share(rank, num_workers, whole_batches, counts)

    @property
    def reads_own_part(self) -> bool:
        return False

    def position(self) -> dict[str, int]:
        return {"sample": self._sample}

    def seek(self, position: dict[str, int]) -> None:
        self._stop()
        self._sample = int(position["sample"])

    def close(self) -> None:
        self._stop()
        self.close_source()

    def _stop(self) -> None:
        if self._prefetch is not None:
            self._prefetch.close()
            self._prefetch = None

    def _start(self) -> Prefetch[Batch]:
        make = self.open_batches()
        start, step = self._sample, self.batch_size * self.share.num_workers
        depth = self.spec.data_param.prefetch
        return Prefetch(lambda k: make(start + k * step), depth, default_num_threads(depth))

    # -- randomness -------------------------------------------------------------------------------------------------
    def key_for(self, purpose: str) -> Callable[[int], int]:
        """Keys, one per number, that depend on the net's seed, this layer and the purpose."""
        seed, name = self.context.draws.seed, self.name
        return lambda number: key_of(seed, name, purpose, number)

    # -- options ----------------------------------------------------------------------------------------------------
    def transform_options(self) -> TransformOptions:
        options = self.spec.transform_param
        if options.HasField("mean_file") and options.mean_value:
            raise self.error("transform_param has both mean_file and mean_value; give one of them")
        if options.force_color and options.force_gray:
            raise self.error("transform_param has both force_color and force_gray; give one of them")
        return TransformOptions(
            crop_size=options.crop_size,
            random_crop=self.training_phase,
            mirror=options.mirror,
            scale=options.scale,
            mean=read_mean(options.mean_file) if options.HasField("mean_file") else None,
            mean_values=tuple(options.mean_value),
        )
