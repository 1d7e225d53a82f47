"""Seat: where a worker is in its job, and what is told of the job in a run folder."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

import poseidon
from poseidon.observe.options import ObserveOptions
from poseidon.plan import CommPlan
from poseidon.record import RUN, Facts
from poseidon.run.roundtable import Roundtable
from poseidon.run.welcome import Crew
from poseidon.solver import Solver
from poseidon.solver.nets import train_net
from poseidon.spec import filter_net, format_message

_NETS = ("net_param", "train_net_param", "test_net_param")


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a worker is in its job. `cluster` are facts about all; a worker that is alone has no table and no plan."""

    table: Roundtable | None = None
    plan: CommPlan | None = None
    cluster: Mapping[str, Any] = field(default_factory=dict)
    host: str = field(default_factory=platform.node)

    @property
    def rank(self) -> int:
        return 0 if self.table is None else self.table.rank

    @property
    def size(self) -> int:
        return 1 if self.table is None else self.table.size


def cluster_facts(crew: Crew, plan: CommPlan) -> dict[str, Any]:
    """Who takes part, and what the links can do, in bytes and seconds."""
    hosts = [crew.cards[crew.nodes.index(node)].host for node in range(max(crew.nodes) + 1)]
    ranks = [[rank for rank, own in enumerate(crew.nodes) if own == node] for node in range(len(hosts))]
    is_one = len(hosts) == 1
    return {
        "nodes": [{"host": host, "ranks": found} for host, found in zip(hosts, ranks, strict=True)],
        "bandwidth": (plan.cluster.local_bps if is_one else plan.cluster.bandwidth_bps) / 8,
        "latency": plan.cluster.latency_s,
        "interface": "shared memory" if is_one else crew.cards[0].interface,
        "threads": list(crew.threads),
        "cores": [len(card.cores) for card in crew.cards],
    }


def run_facts(solver: Solver, options: ObserveOptions, seat: Seat, started: float) -> Facts:
    """What is about to be run."""
    net, plan = solver.net, seat.plan
    settings = {
        entry.name: _text(entry, value) for entry, value in solver.param.ListFields() if entry.name not in _NETS
    }
    here = {
        "workers": seat.size,
        "nodes": [{"host": seat.host, "ranks": [0]}],
        "torch": torch.__version__,
        "poseidon": poseidon.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(net.device),
        "threads": torch.get_num_threads(),
    }
    return Facts(
        RUN,
        options.command,
        started,
        configuration={**settings, **options.configuration},
        net=_net_text(solver),
        cluster={**here, **seat.cluster},
        plan=None if plan is None else json.loads(plan.to_json()),
        shapes={
            "blobs": {name: tuple(shape) for name, shape in net.blob_shapes.items()},
            "params": {f"{entry.layer}/{entry.index}": tuple(entry.value.shape) for entry in net.learnable},
        },
    )


def _text(field: FieldDescriptor, value: Any) -> str:
    """As it would be written in a prototxt, to the digits of a float."""
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return ", ".join(_one(field, entry) for entry in values)


def _one(field: FieldDescriptor, value: Any) -> str:
    if isinstance(value, Message):
        return format_message(value).strip()
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _net_text(solver: Solver) -> str:
    """The train net as it is written, without weights."""
    choice = train_net(solver.param)
    source = choice.read()
    state = choice.state(source)
    net = filter_net(source, state.phase, state.level, tuple(choice.extra_state.stage)).net
    for layer in net.layer:
        layer.ClearField("blobs")
    return format_message(net)
