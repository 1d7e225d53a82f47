"""Parts: a train net's batches dealt out in parts of unequal length, to the same result.

A batch of P·B samples is that of all workers together; worker r has n_r of them, Σ n_r = P·B. What the net computes on
a worker are means over its own samples, and what is exchanged is averaged over workers. So everything is weighted:

    gradient   (1/P) Σ_r (n_r / B) ∂/∂w mean_r(loss)  =  ∂/∂w of the mean over all P·B samples

The weight n_r / B goes into the loss itself (`Graph.weight`), from where it reaches factors, rows and dense gradients
alike. Losses that divide by the number of valid labels, or by nothing, divide by what the whole batch has (`loss.py`).
Random draws are keyed by a sample's place in the whole batch. Factors have n_r / B times the planned rows.

BatchNorm takes the statistics of a worker's own samples, of which there are now more or fewer; with `sync_bn` those of
the whole batch, exactly.

What this cannot be right for is refused, with the reason (`check_parts`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from poseidon.comm import Exchange
from poseidon.comm.factors import FactorExchange
from poseidon.comm.wiring import factor_layout
from poseidon.data.shard import Share
from poseidon.errors import NetError, UsageError
from poseidon.net.graph import Node
from poseidon.net.layer import Shape, text_of
from poseidon.net.layers.dummy_data import DummyData
from poseidon.net.layers.loss import LossLayer
from poseidon.net.layers.prefetched import PrefetchedLayer
from poseidon.net.layers.reduction import Reduction
from poseidon.net.net import Net
from poseidon.plan import GPI, CommPlan, Scheme
from poseidon.run.roundtable import Roundtable
from poseidon.run.shards import Sharded, count_labels_together, share_batch
from poseidon.solver import Solver
from poseidon.solver.continuation import Carrying
from poseidon.spec import caffe_pb2


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of factors that a worker with n samples gives: `planned` with B, and so many more with each further one, by
    weight of the unit. All of them get as many as the one that needs most."""

    planned: int
    per_sample: tuple[int, ...]

    def of(self, num_samples: int, batch_size: int) -> int:
        return self.planned + max(each * (num_samples - batch_size) for each in self.per_sample)


class Parts:
    """Deals out the batches of a solver's train net. `counts` are the workers' parts as they are now."""

    def __init__(self, solver: Solver, table: Roundtable, plan: CommPlan) -> None:
        self._net, self._table = solver.net, table
        self._iter_size = solver.param.iter_size
        check_parts(solver, plan)
        self.batch_size = _batch_size(self._net)
        self.counts = self._equal
        self._check_shapes(shows_outputs=bool(solver.param.display))

    @property
    def _equal(self) -> tuple[int, ...]:
        return (self.batch_size,) * self._table.size

    def deal(self, counts: tuple[int, ...], exchanges: Sequence[Exchange]) -> None:
        """From now on worker r has counts[r] samples of every batch. All workers call it, with nothing on its way."""
        assert sum(counts) == self.batch_size * self._table.size, "every sample has one worker"
        rows = self._rows(exchanges)
        own = counts[self._table.rank]
        self._set(Share(self._table.rank, self._table.size, counts=counts))
        self._net.graph.weight = own / self.batch_size
        count_labels_together(self._net, self._table, sum(counts) / own)
        for exchange, found in rows.items():
            exchange.rows_by_rank = [found.of(count, self.batch_size) for count in counts]
        self.counts = counts

    def close(self, exchanges: Sequence[Exchange]) -> None:
        """Equal parts again."""
        if self.counts != self._equal:
            self.deal(self._equal, exchanges)
        share_batch(self._net, self._table.rank, self._table.size)

    # -- shapes -----------------------------------------------------------------------------------------------------
    def _set(self, share: Share) -> None:
        """The net reads and shapes what this share gives."""
        share_batch(self._net, share.rank, share.num_workers, share.counts)
        for node in self._net.graph.nodes:
            if isinstance(node.layer, DummyData):
                node.layer.deal(self.batch_size, share.num_samples(self.batch_size))
        self._net.graph.reshape({})

    @contextlib.contextmanager
    def _one_more(self) -> Iterator[None]:
        """While it lasts, the net has the shapes of a worker with one sample more than is written in it."""
        batch = self.batch_size
        try:
            self._set(Share(0, 2, counts=(batch + 1, batch - 1)))
            yield
        finally:
            self._set(Share(self._table.rank, self._table.size, counts=self.counts))

    def _rows(self, exchanges: Sequence[Exchange]) -> dict[FactorExchange, _Rows]:
        """How many rows of factors follow from how many samples: linear, since shapes are."""
        found = [exchange for exchange in exchanges if isinstance(exchange, FactorExchange)]
        if not found:
            return {}
        with self._one_more():
            more = {exchange: self._rows_now(exchange) for exchange in found}
        planned = {exchange: exchange.layout.num_rows for exchange in found}
        return {
            exchange: _Rows(planned[exchange], tuple(many - planned[exchange] for many in more[exchange]))
            for exchange in found
        }

    def _rows_now(self, exchange: FactorExchange) -> list[int]:
        """By weight, with the shapes that the net has."""
        weights = [factored.weight for factored in exchange.weights]
        return [factor_layout(self._net, [weight], self._iter_size).num_rows for weight in weights]

    def _check_shapes(self, *, shows_outputs: bool) -> None:
        """Refuses a net that is not all per sample: every blob must follow the batch, or not depend on it."""
        net, batch = self._net, self.batch_size
        before = dict(net.graph.shapes)
        try:
            with self._one_more():
                after = dict(net.graph.shapes)
        except NetError as problem:
            raise UsageError(
                f"--balance deals out parts of a batch, but this net takes batches of {batch} only: {problem}"
            ) from problem
        for name, shape in before.items():
            if not _follows(shape, after[name], batch):
                raise UsageError(
                    f"--balance deals out parts of a batch, but blob {name!r} does not follow the number of samples "
                    f"along its first axis: {text_of(shape)} for {batch}, {text_of(after[name])} for {batch + 1}"
                )
        for name in net.outputs if shows_outputs else ():
            if after[name] != before[name]:
                raise UsageError(
                    f"--balance: output {name!r} of the train net has a value per sample, and workers have different "
                    "numbers of them, so it cannot be shown; let a Silence layer take it, or set display: 0"
                )


def _follows(shape: Shape, larger: Shape, batch: int) -> bool:
    """Whether a blob's shape is the same with one sample more, or has that sample more along its first axis."""
    if shape == larger:
        return True
    return len(shape) == len(larger) and shape[1:] == larger[1:] and shape[0] * (batch + 1) == larger[0] * batch


# -- what cannot be dealt out -----------------------------------------------------------------------------------------
def check_parts(solver: Solver, plan: CommPlan) -> None:
    """Refuses what would not give the whole batch's result, or could not be dealt out at all."""
    for node in solver.net.graph.nodes:
        problem = _source_problem(node) if not node.bottoms else _layer_problem(node)
        if problem:
            layer = node.layer
            raise UsageError(
                f"{layer.context.where}: layer {layer.name!r} ({layer.type_name}) {problem}; train without --balance"
            )
    if plan.pattern == GPI and any(unit.scheme is Scheme.FACTORS for unit in plan.units):
        raise UsageError(
            "--balance with --pattern gpi: memory for factors is laid out once, for parts of equal length; give "
            "--scheme server or tree too, or leave one of them out"
        )


def _source_problem(node: Node) -> str:
    layer = node.layer
    if isinstance(layer, PrefetchedLayer) and layer.reads_own_part:
        return (
            "reads a part of the data that only this worker has (shared_file_system: false): dealt out unequally, some "
            "records would be read more often than others"
        )
    if isinstance(layer, (Sharded, DummyData)) or layer.num_params:
        return ""
    return "is fed by each worker itself: nobody else can take some of its samples"


def _layer_problem(node: Node) -> str:
    layer = node.layer
    if isinstance(layer, Carrying):
        return "carries a state from batch to batch, for samples that would go to another worker"
    is_mean = isinstance(layer, LossLayer) or (
        isinstance(layer, Reduction) and layer.spec.reduction_param.operation == caffe_pb2.ReductionParameter.MEAN
    )
    if any(node.loss_weights) and not is_mean:
        return "is a loss that may not be a mean over samples, so that nobody knows how to weigh parts of a batch"
    return ""


def _batch_size(net: Net) -> int:
    """How many samples all layers that read records have per worker."""
    sizes: dict[int, str] = {}
    for node in net.graph.nodes:
        if not node.bottoms and isinstance(node.layer, (Sharded, DummyData)):
            for name in node.tops:
                sizes.setdefault((net.graph.shapes[name] or (1,))[0], name)
    if len(sizes) != 1:
        listed = ", ".join(f"{count} of {name!r}" for count, name in sizes.items()) or "none"
        raise UsageError(f"--balance needs one number of samples for all data layers, got {listed}")
    (batch_size,) = sizes
    if batch_size < 2:
        raise UsageError(
            f"--balance deals out batches by speed, but with {batch_size} sample per worker there is nothing to deal; "
            "set a larger batch_size"
        )
    return batch_size
