"""Memory: the segments of one worker, laid out for a plan (`layout.py`); parameters move into them and stay there.

All workers make theirs together, and meet once when that is done: the only time under this pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.comm.exchange import Exchange
from poseidon.comm.notified.exchanges import PutFactors
from poseidon.comm.notified.layout import SLOTS, VALUES, Block, Ids, Layout
from poseidon.comm.part import Member
from poseidon.errors import UsageError
from poseidon.plan import CommPlan, Flow, Scheme, flows_of
from poseidon.transport import Transport
from poseidon.transport.onesided import Spot

MEET_S = 120.0


@dataclass(frozen=True, slots=True)
class Route:
    """A flow as one worker sees it. Looked up once: in training the same bytes go the same way again and again.

    `id`: what this worker's puts are known by. `up`: where its sum goes, None at the root; `down`: its children's
    parameters. `slots`: the children's sums, in the order in which they are added; `values`: its own parameters' bytes.
    `bytes_up`, `bytes_down`: what of either goes over a network.
    """

    flow: Flow
    id: int
    up: Spot | None
    down: tuple[Spot, ...]
    slots: tuple[Tensor, ...]
    values: Tensor
    bytes_up: int
    bytes_down: int


class Memory:
    """`exchanges` are those of all units that travel."""

    def __init__(self, plan: CommPlan, exchanges: Sequence[Exchange], transport: Transport) -> None:
        for exchange in exchanges:
            _check_host_memory(exchange)
        self.rank, self.size = transport.rank, transport.size
        blocks = [
            Block(exchange.unit.index, exchange.block_bytes)
            for exchange in exchanges
            if isinstance(exchange, PutFactors)
        ]
        dense = {exchange.unit.index: exchange for exchange in exchanges if not isinstance(exchange, PutFactors)}
        travelling = [unit for unit in plan.units if unit.scheme is not Scheme.LOCAL]
        widths = {exchange.unit.index: exchange.members[0].parameter.element_size() for exchange in exchanges}
        self.flows = flows_of(plan)
        self._layout = Layout(
            self.flows,
            blocks,
            [widths[unit.index] for unit in travelling],
            [unit.num_elems if unit.index in dense else 0 for unit in travelling],
        )
        self.ids = Ids(self.size, len(self.flows), len(plan.units))
        self._slots = [self._layout.slots(rank, self.size) for rank in range(self.size)]
        self.endpoint = transport.one_sided()
        self._values = self.endpoint.allocate(VALUES, max(1, self._layout.value_bytes))
        self._incoming = self.endpoint.allocate(SLOTS, max(1, self._slots[self.rank].num_bytes))
        for exchange in dense.values():
            self._move_in(exchange)
        self.near = {rank for rank, link in enumerate(self.endpoint.links) if link == "shared memory"}
        self.routes = [self._route(flow, dense[flow.send.unit].members[0].value.dtype) for flow in self.flows]
        transport.barrier(MEET_S)

    # -- flows ------------------------------------------------------------------------------------------------------
    def _route(self, flow: Flow, dtype: torch.dtype) -> Route:
        parent, children = flow.parent(self.rank), flow.children(self.rank)
        first, num_bytes = self._layout.value_offset(flow), self._layout.flow_bytes(flow)
        sums = self._slots[self.rank].sums
        return Route(
            flow,
            self.ids.flow(flow.index, self.rank),
            None if parent is None else Spot(parent, SLOTS, self._slots[parent].sums[flow.index, self.rank]),
            tuple(Spot(child, VALUES, first) for child in children),
            tuple(self._incoming_at(sums[flow.index, child], num_bytes, dtype) for child in children),
            self._values[first : first + num_bytes],
            0 if parent is None or parent in self.near else num_bytes,
            num_bytes * sum(child not in self.near for child in children),
        )

    # -- blocks -----------------------------------------------------------------------------------------------------
    def block_of(self, unit: int, source: int, turn: int, like: Tensor) -> Tensor:
        """What another worker has put here."""
        return self._incoming_at(self._slots[self.rank].blocks[unit, source, turn], like.nbytes, like.dtype)

    def spot_of_block(self, unit: int, rank: int, turn: int) -> Spot:
        return Spot(rank, SLOTS, self._slots[rank].blocks[unit, self.rank, turn])

    def _incoming_at(self, offset: int, num_bytes: int, dtype: torch.dtype) -> Tensor:
        return self._incoming[offset : offset + num_bytes].view(dtype)

    # -- parameters -------------------------------------------------------------------------------------------------
    def _move_in(self, exchange: Exchange) -> None:
        first = self._layout.value_offsets[exchange.unit.index]
        for member in exchange.members:
            self._move(member, first)

    @torch.no_grad()
    def _move(self, member: Member, first: int) -> None:
        value = member.value
        start = first + member.offset * value.element_size()
        room = self._values[start : start + value.nbytes].view(value.dtype)
        moved = torch.as_strided(room, value.shape, value.stride()).copy_(value)
        member.parameter.data = moved


def _check_host_memory(exchange: Exchange) -> None:
    for member in exchange.members:
        device = member.value.device
        if device.type != "cpu":
            raise UsageError(
                f"the pattern 'gpi' puts gradients from host memory, but {member.name} is on {device}: train on the "
                "CPU, or leave --pattern out, and gradients go from device to device"
            )
