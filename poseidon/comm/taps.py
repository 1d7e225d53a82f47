"""Taps: where a net's gradients leave it, and where its next forward pass waits for them to have come back.

A parameter's gradient is final when autograd has added the last use of it: the post-accumulate hook fires once, after
all sharers, also where the gradient went out as factors. With several passes per iteration only the last one counts
(`arm`). Layers know nothing of units: each one's gate waits for the units of its own parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from poseidon.comm.exchange import Exchange, Wiring
from poseidon.comm.factor_server import FactorServer
from poseidon.comm.factors import FactorExchange, Factors
from poseidon.comm.part import Member, members_of
from poseidon.comm.ring import Ring
from poseidon.comm.rows import Rows
from poseidon.comm.scheduler import Scheduler
from poseidon.comm.server import Server
from poseidon.net.layer import Layer
from poseidon.net.layers.embed import Embed
from poseidon.net.layers.inner_product import InnerProduct
from poseidon.net.net import Net
from poseidon.plan import CommPlan, Scheme
from poseidon.transport import Transport


def make_exchanges(net: Net, plan: CommPlan, transport: Transport) -> list[Exchange]:
    """The exchange of every unit that travels."""
    parameters = {f"{entry.layer}/{entry.index}": entry.value for entry in net.learnable}
    exchanges = []
    for unit in plan.units:
        if unit.scheme is not Scheme.LOCAL:
            members = members_of([(name, parameters[name]) for name in unit.params])
            exchanges.append(_exchange(net, Wiring(unit, members, transport, plan.order)))
    return exchanges


def _exchange(net: Net, wiring: Wiring) -> Exchange:
    layer = net.layers[wiring.unit.params[0].rpartition("/")[0]]
    transposed = layer.spec.inner_product_param.transpose
    makers: dict[Scheme, Callable[[], Exchange]] = {
        Scheme.RING: lambda: Ring(wiring),
        Scheme.SERVER: lambda: Server(wiring),
        Scheme.FACTORS: lambda: Factors(wiring, transposed=transposed),
        Scheme.FACTOR_SERVER: lambda: FactorServer(wiring, transposed=transposed),
        Scheme.ROWS: lambda: Rows(wiring),
    }
    return makers[wiring.unit.scheme]()


class Taps:
    """Connects a net to a scheduler's exchanges until `close`."""

    def __init__(self, net: Net, exchanges: Sequence[Exchange], scheduler: Scheduler) -> None:
        self._net = net
        self._scheduler = scheduler
        self._context: Any = None
        self._armed = False
        self._by_parameter: dict[nn.Parameter, tuple[Exchange, Member]] = {}
        self._missing: dict[int, set[str]] = {}
        for exchange in exchanges:
            for member in exchange.members:
                self._by_parameter[member.parameter] = (exchange, member)
        self._hooks = [p.register_post_accumulate_grad_hook(self._final) for p in self._by_parameter]
        for node in net.graph.nodes:
            self._connect(node.layer)

    def arm(self, context: Any) -> None:
        """The next backward pass makes gradients final; `context` goes with them."""
        self._context = context
        self._armed = True
        self._missing = {}
        for exchange, member in self._by_parameter.values():
            self._missing.setdefault(exchange.unit.index, set()).add(member.name)

    def announce(self, parameter: nn.Parameter) -> None:
        """A parameter's gradient is final, said by somebody else than autograd."""
        if parameter in self._by_parameter:
            self._final(parameter)

    def complete(self) -> None:
        """The pass is over: parameters it did not reach are offered as they are."""
        for parameter in self._by_parameter:
            self._final(parameter)
        self._armed = False

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for node in self._net.graph.nodes:
            node.layer.gate = None
            if isinstance(node.layer, InnerProduct):
                node.layer.factor_tap = None
            if isinstance(node.layer, Embed):
                node.layer.gives_rows = False

    def _final(self, parameter: nn.Parameter) -> None:
        if not self._armed:
            return
        exchange, member = self._by_parameter[parameter]
        missing = self._missing[exchange.unit.index]
        if member.name not in missing:
            return
        exchange.offer(member, parameter.grad)
        parameter.grad = None  # it is the exchange's now, and gone when that is over
        missing.discard(member.name)
        if not missing:
            self._scheduler.ready(exchange.unit.index, self._context)

    def _connect(self, layer: Layer) -> None:
        found = [self._by_parameter.get(layer.param_owner(index)) for index in range(layer.num_params)]
        units = [None if entry is None else entry[0].unit.index for entry in found]
        if any(unit is not None for unit in units):
            layer.gate = self._gate(units)
        exchange = found[0][0] if found and found[0] is not None else None
        if isinstance(layer, InnerProduct) and isinstance(exchange, FactorExchange):
            layer.factor_tap = exchange.tap
        if isinstance(layer, Embed) and isinstance(exchange, Rows):
            layer.gives_rows = True

    def _gate(self, units: list[int | None]) -> Callable[[int], None]:
        def gate(index: int) -> None:
            unit = units[index]
            if unit is not None:
                self._scheduler.wait(unit)

        return gate
