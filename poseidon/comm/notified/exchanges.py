"""Exchanges under notified puts: what a unit offers, and who owns which of its elements. The driver moves them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.comm.exchange import DenseExchange, Wiring
from poseidon.comm.factors import FactorExchange
from poseidon.comm.part import Member, Part, Region, regions_within
from poseidon.plan import Flow, Send


class FlowExchange(DenseExchange):
    """A dense unit (SERVER, TREE); `flows` are its own."""

    def __init__(self, wiring: Wiring, flows: Sequence[Flow]) -> None:
        super().__init__(wiring)
        self.flows = list(flows)
        self._of_bucket: dict[int, Tensor] = {}

    def begin(self, send: Send) -> list[Flow]:
        """The trees that a Send's elements take."""
        return [flow for flow in self.flows if flow.send == send]

    def reduced(self, send: Send, token: Flow) -> list[Part]:
        """At a flow's root, when the sum is in its memory."""
        return self.parts(token.start, token.stop, self.gradient(token), everywhere=False)

    def gradient(self, flow: Flow) -> Tensor:
        """This worker's gradient of a flow's elements; what is summed is summed there. A bucket stays where it is: its
        parts are looked up once."""
        if self._memory is not self._bucket:
            return self._part_of(flow)
        if flow.index not in self._of_bucket:
            self._of_bucket[flow.index] = self._part_of(flow)
        return self._of_bucket[flow.index]

    def _part_of(self, flow: Flow) -> Tensor:
        first = flow.start - flow.send.start
        return self.memory(flow.send)[first : first + flow.stop - flow.start]

    def shards(self, owner: int) -> list[tuple[Member, Region]]:
        roots = [flow for flow in self.flows if flow.root == owner]
        return [found for flow in roots for found in regions_within(self.members, flow.start, flow.stop)]


class PutFactors(FactorExchange):
    """A fully-connected unit (FACTORS). A worker's block is new memory in every iteration: it may still be on its way
    to a slow worker when the iteration is over here."""

    def begin(self, send: Send) -> Tensor:
        """This worker's block."""
        return self.final().memory.view(-1)

    def reduced(self, send: Send, token: Sequence[Tensor]) -> list[Part]:
        """When everybody's block is here."""
        return self.sums(torch.cat([block.view(-1, self.width) for block in token]))
