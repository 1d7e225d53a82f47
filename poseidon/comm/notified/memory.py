"""Memory: the segments of one worker, laid out for a plan (`layout.py`); parameters move into them and stay there.

All workers make theirs together, and meet once when that is done: the only time under this pattern.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        transport.barrier(MEET_S)

    # -- flows ------------------------------------------------------------------------------------------------------
    def sum_of(self, flow: Flow, child: int, like: Tensor) -> Tensor:
        """What a child has put here."""
        return self._typed(self._slots[self.rank].sums[flow.index, child], like)

    def spot_at_parent(self, flow: Flow) -> Spot:
        parent = flow.parent(self.rank)
        assert parent is not None
        return Spot(parent, SLOTS, self._slots[parent].sums[flow.index, self.rank])

    def values(self, flow: Flow) -> Tensor:
        """A flow's elements, in the parameters themselves, as bytes."""
        first = self._layout.value_offset(flow)
        return self._values[first : first + self._layout.flow_bytes(flow)]

    def spot_of_values(self, flow: Flow, rank: int) -> Spot:
        return Spot(rank, VALUES, self._layout.value_offset(flow))

    # -- blocks -----------------------------------------------------------------------------------------------------
    def block_of(self, unit: int, source: int, turn: int, like: Tensor) -> Tensor:
        """What another worker has put here."""
        return self._typed(self._slots[self.rank].blocks[unit, source, turn], like)

    def spot_of_block(self, unit: int, rank: int, turn: int) -> Spot:
        return Spot(rank, SLOTS, self._slots[rank].blocks[unit, self.rank, turn])

    def _typed(self, offset: int, like: Tensor) -> Tensor:
        return self._incoming[offset : offset + like.nbytes].view(like.dtype)

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
