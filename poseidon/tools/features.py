"""features: blobs of a net in its TEST phase, row by row, into databases: Caffe's extract_features.

    key     %010d, the number of the row since the first batch
    value   a Datum of the row's channels × height × width floats; blobs of fewer axes are filled up with ones

Several workers run different batches and each writes its own databases. Row numbers are those of one worker alone, so
the databases of all workers hold, key by key, what its one database would:

    data in one place    worker r of P runs batches r, r + P, …
    parts of the data    worker r's part holds records r, r + P, … (partition_data); its k-th row is number r + k·P
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch

from poseidon.data.database import NewDatabase, new_database
from poseidon.data.datum import float_datum
from poseidon.errors import NetError, UsageError
from poseidon.net.net import Net
from poseidon.tools.feature_request import FeatureRequest
from poseidon.tools.teller import Teller

_SOURCE = "extract_features.cpp"
_TOLD_EVERY = 1000
_LEGACY_AXES = 4


@dataclass(frozen=True, slots=True)
class Deal:
    """Which batches a worker runs, and what their rows are numbered."""

    rank: int = 0
    num_workers: int = 1
    own_part: bool = False

    def batches(self, num_batches: int) -> range:
        """Numbers of the batches; where every worker has a part, of those of all workers together."""
        if self.own_part:
            return range(-(-num_batches // self.num_workers))
        return range(self.rank, num_batches, self.num_workers)

    def numbers(self, batch: int, num_rows: int) -> range:
        """Numbers of a batch's rows."""
        first = batch * num_rows
        if self.own_part:
            step = self.num_workers
            return range(first * step + self.rank, (first + num_rows) * step + self.rank, step)
        return range(first, first + num_rows)


def extract_features(net: Net, request: FeatureRequest, deal: Deal, tell: Teller) -> None:
    """Runs the net, whose data layers have been dealt likewise, and writes the databases; all of them, or none."""
    _check(net, request)
    with ExitStack() as stack:
        sinks = []
        for blob, target in zip(request.blobs, request.targets, strict=True):
            tell.say(f"{_SOURCE}:120", f"Opening dataset {target}")
            database = stack.enter_context(new_database(target, request.backend))
            sinks.append(_Sink(blob, database, deal, request.num_batches))
        tell.say(f"{_SOURCE}:133", "Extracting Features", "E")
        batches = deal.batches(request.num_batches)
        for done, batch in enumerate(batches, start=1):
            net.draws.clock = batch
            with torch.no_grad():
                values = net(keep=request.blobs)
            for sink in sinks:
                sink.add(batch, values[sink.blob].detach().cpu().numpy(), tell)
            tell.progress("extracting", done, len(batches))
        for sink in sinks:
            sink.database.flush()  # all that can still go wrong does so before the first database is seen
    for sink in sinks:
        sink.tell_total(tell)
    tell.say(f"{_SOURCE}:186", "Successfully extracted the features!", "E")


def _check(net: Net, request: FeatureRequest) -> None:
    where = net.source.filename
    if net.inputs:
        raise UsageError(
            f"{where} takes {', '.join(net.inputs)} from its caller; to extract features a net needs a data layer for "
            "its TEST phase"
        )
    request.check_blobs(net.blob_shapes, where)
    for blob in request.blobs:
        if len(net.blob_shapes[blob]) > _LEGACY_AXES:
            raise NetError(
                f"{where}: blob {blob} has {len(net.blob_shapes[blob])} axes, a Datum holds three and the first is the "
                "batch; flatten it (Flatten, Reshape)"
            )


class _Sink:
    """One blob on its way into its database."""

    def __init__(self, blob: str, database: NewDatabase, deal: Deal, num_batches: int) -> None:
        self.blob = blob
        self.database = database
        self._deal = deal
        self._num_batches = num_batches
        self._num_rows: int | None = None

    def add(self, batch: int, values: np.ndarray, tell: Teller) -> None:
        shape = values.shape + (1,) * (_LEGACY_AXES - values.ndim)
        rows = values.reshape(shape)
        for number, row in zip(self._numbers(batch, len(rows)), rows, strict=True):
            if self._deal.own_part and number >= self._num_batches * len(rows):
                break
            self.database.put(f"{number:010d}".encode(), float_datum(row))
            if self.database.num_records % _TOLD_EVERY == 0:
                self.tell_total(tell)

    def tell_total(self, tell: Teller) -> None:
        count = self.database.num_records
        tell.say(f"{_SOURCE}:172", f"Extracted features of {count} query images for feature blob {self.blob}", "E")

    def _numbers(self, batch: int, num_rows: int) -> range:
        if self._deal.num_workers == 1:
            first = self.database.num_records
            return range(first, first + num_rows)
        if self._num_rows not in (None, num_rows):
            raise NetError(
                f"blob {self.blob} has {num_rows} rows in one batch and {self._num_rows} in another: what several "
                "workers write cannot be numbered then; extract it with one"
            )
        self._num_rows = num_rows
        return self._deal.numbers(batch, num_rows)
