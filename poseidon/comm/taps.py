"""Taps: where a net's gradients leave it, and where its next forward pass waits for them to have come back.

A parameter's gradient is final when autograd has added the last use of it: the post-accumulate hook fires once, after
all sharers, also where the gradient went out as factors. With several passes per iteration only the last one counts:

    begin()          before the first pass: layers hand out factors and rows from now on
    arm(context)     before the last pass: what becomes final from now on goes out
    complete()       after it: what it did not reach goes out as it is; layers give ordinary gradients again

Layers know nothing of units: each one's gate waits for the units of its own parameters, whoever runs the net.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from poseidon.comm.conductor import Conductor
from poseidon.comm.exchange import Exchange
from poseidon.comm.factors import FactorExchange
from poseidon.comm.part import Member
from poseidon.comm.rows import Rows
from poseidon.net.layer import Layer
from poseidon.net.layers.embed import Embed
from poseidon.net.layers.inner_product import InnerProduct
from poseidon.net.net import Net


class Taps:
    """Connects a net to a scheduler's exchanges until `close`."""

    def __init__(self, net: Net, exchanges: Sequence[Exchange], scheduler: Conductor[Any]) -> None:
        self._layers = [node.layer for node in net.graph.nodes]
        self._exchanges = list(exchanges)
        self._scheduler = scheduler
        self._context: Any = None
        self._begun = False
        self._armed = False
        self._by_parameter: dict[nn.Parameter, tuple[Exchange, Member]] = {
            member.parameter: (exchange, member) for exchange in exchanges for member in exchange.members
        }
        self._missing: dict[int, set[str]] = {}
        self._hooks = [p.register_post_accumulate_grad_hook(self._final) for p in self._by_parameter]
        for layer in self._layers:
            units = [None if found is None else found.unit.index for found in self._exchanges_of(layer)]
            if any(unit is not None for unit in units):
                layer.gate = self._gate(units)
        self._factored = [layer for layer in self._layers if isinstance(layer, InnerProduct)]
        self._tables = [layer for layer in self._layers if isinstance(layer, Embed)]

    def begin(self) -> None:
        """A new iteration: what passes have handed over since the last one is nobody's."""
        for exchange in self._exchanges:
            exchange.discard()
        self._connect()
        self._begun = True

    def arm(self, context: Any) -> None:
        """The next backward pass makes gradients final; `context` goes with them."""
        if not self._begun:
            self.begin()
        self._context = context
        self._armed = True
        self._missing = {
            exchange.unit.index: {member.name for member in exchange.members} for exchange in self._exchanges
        }

    def announce(self, parameter: nn.Parameter) -> None:
        """A parameter's gradient is final, said by somebody else than autograd."""
        if parameter in self._by_parameter:
            self._final(parameter)

    def complete(self) -> None:
        """The pass is over: parameters it did not reach are offered as they are."""
        for parameter in self._by_parameter:
            self._final(parameter)
        self._armed = self._begun = False
        self._disconnect()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for layer in self._layers:
            layer.gate = None
        self._disconnect()

    def _final(self, parameter: nn.Parameter) -> None:
        if not self._armed:
            return
        exchange, member = self._by_parameter[parameter]
        missing = self._missing[exchange.unit.index]
        if member.name not in missing:
            return
        # Over long since if a layer has read the parameter in this iteration; nobody else's gate has waited for it.
        self._scheduler.wait(exchange.unit.index)
        exchange.offer(member, parameter.grad)
        parameter.grad = None  # it is the exchange's now, and gone when that is over
        missing.discard(member.name)
        if not missing:
            self._scheduler.ready(exchange.unit.index, self._context)

    # -- layers -----------------------------------------------------------------------------------------------------
    def _exchanges_of(self, layer: Layer) -> list[Exchange | None]:
        """By parameter of the layer."""
        found = [self._by_parameter.get(layer.param_owner(index)) for index in range(layer.num_params)]
        return [None if entry is None else entry[0] for entry in found]

    def _connect(self) -> None:
        for layer in self._factored:
            weight, *bias = self._exchanges_of(layer)
            if isinstance(weight, FactorExchange):
                owner = layer.param_owner(0)
                layer.factor_tap = partial(weight.tap, weight.factored(self._by_parameter[owner][1].name))
                layer.taps_bias = bool(bias) and weight.follows(layer.param_owner(1), owner)
        for table in self._tables:
            table.gives_rows = isinstance(self._exchanges_of(table)[0], Rows)

    def _disconnect(self) -> None:
        for layer in self._factored:
            layer.factor_tap = None
        for table in self._tables:
            table.gives_rows = False

    def _gate(self, units: list[int | None]) -> Callable[[int], None]:
        def gate(index: int) -> None:
            unit = units[index]
            if unit is not None:
                self._scheduler.wait(unit)

        return gate
