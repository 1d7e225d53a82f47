"""RuleUpdate: a solver's rule at the servers of tables, applied to each part once per complete clock.

It is made from text, so that servers which have no net of their own make the same: the solver's settings, and which
elements of the table belong to which parameter, with its multipliers. Iteration and rate come with the gradients.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from google.protobuf import text_format
from torch import Tensor

from poseidon.comm.stale.hub import Hub
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.lazy_shard import shard_of
from poseidon.comm.stale.shard import Addition, Shard, Total, Update
from poseidon.comm.stale.units import UnitTable
from poseidon.solver import Solver
from poseidon.solver.rules import Hyper, Slot, rule_for
from poseidon.spec import caffe_pb2


@dataclass(frozen=True, slots=True)
class _Owner:
    """Elements [start, stop) of the table are this parameter's."""

    name: str
    start: int
    stop: int
    rate_mult: float
    decay_mult: float


class RuleUpdate:
    """`text` is from `rule_text`."""

    def __init__(self, spec: TableSpec, text: str) -> None:
        told = json.loads(text)
        self._spec = spec
        self._param = text_format.Parse(told["solver"], caffe_pb2.SolverParameter())
        self._divisor = told["divisor"]
        self._owners = [_Owner(**owner) for owner in told["owners"]]
        self._rule = rule_for(self._param)
        self._histories: dict[int, tuple[Tensor, ...]] = {}
        self._hyper: Hyper | None = None

    def histories(self, part: int) -> Sequence[Tensor]:
        if part not in self._histories:
            shape = (self._spec.spans[part].num_rows, self._spec.width)
            zeros = (torch.zeros(shape, dtype=self._spec.torch_dtype) for _ in range(self._rule.num_histories))
            self._histories[part] = tuple(zeros)
        return self._histories[part]

    def _hyper_of(self, total: Total) -> Hyper:
        """The same for all parts of a clock."""
        if self._hyper is None or (self._hyper.iteration, self._hyper.rate) != (total.number, total.rate):
            hyper = Hyper.of(self._param, total.number, total.rate)
            self._hyper = replace(hyper, iter_size=hyper.iter_size * self._divisor)
        return self._hyper

    def apply(self, values: Tensor, total: Total) -> None:
        hyper = self._hyper_of(total)
        first = self._spec.spans[total.part].first * self._spec.width
        flats = [tensor.view(-1) for tensor in (values, total.sum, *self.histories(total.part))]
        slots, grads = [], []
        for owner in self._owners:
            here = slice(max(owner.start - first, 0), min(owner.stop - first, len(flats[0])))
            if here.start < here.stop:
                value, grad, *history = (tensor[here] for tensor in flats)
                slots.append(Slot(owner.name, value, tuple(history), owner.rate_mult, owner.decay_mult))
                grads.append(grad)
        self._rule.update(slots, grads, hyper)


def shard_from(hub: Hub, spec: TableSpec, text: str) -> Shard:
    """What a rank that only serves has of a table, as a worker tells it: updates by a rule, or (no text) their sum."""
    update: Update = RuleUpdate(spec, text) if text else Addition()
    return shard_of(hub, spec, update)


def rule_text(solver: Solver, table: UnitTable, divisor: int) -> str:
    """What a server of the table needs to know. `divisor`: sums are divided by it (the number of workers, or 1)."""
    slots = {slot.name: slot for slot in solver.slots}
    owners = [
        _Owner(segment.name, segment.start, segment.stop, slot.rate_mult, slot.decay_mult)
        for segment in table.segments()
        for slot in (slots[segment.name],)
    ]
    settings = caffe_pb2.SolverParameter()
    settings.CopyFrom(solver.param)
    for field in ("net_param", "train_net_param", "test_net_param"):  # servers have no use for nets
        settings.ClearField(field)
    told = {
        "solver": text_format.MessageToString(settings),
        "divisor": divisor,
        "owners": [asdict(owner) for owner in owners],
    }
    return json.dumps(told)
