"""Wiring: the exchange of every unit, made from a plan and the net it is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch

from poseidon.comm.doubling import Doubling
from poseidon.comm.exchange import Exchange, Wiring
from poseidon.comm.factor_server import FactorServer
from poseidon.comm.factors import FactorLayout, Factors
from poseidon.comm.narrow import NARROW_DTYPES, NarrowRing, NarrowServer
from poseidon.comm.notified.exchanges import FlowExchange, PutFactors
from poseidon.comm.part import Member, members_of
from poseidon.comm.ring import Ring
from poseidon.comm.rows import Rows
from poseidon.comm.server import Server
from poseidon.comm.several import Several, groups_of
from poseidon.comm.threads import Threads
from poseidon.net.layers.inner_product import InnerProduct
from poseidon.net.net import Net
from poseidon.plan import GPI, CommPlan, Scheme, flows_of
from poseidon.transport import Transport


def make_exchanges(
    net: Net, plan: CommPlan, transport: Transport, iter_size: int = 1, threads: Threads | None = None
) -> list[Exchange]:
    """The exchange of every unit that travels. `iter_size`: how many passes an iteration has; `threads` rebuild
    factors."""
    parameters = {f"{entry.layer}/{entry.index}": entry.value for entry in net.learnable}
    exchanges: list[Exchange] = []
    flows = flows_of(plan) if plan.pattern == GPI else ()
    for unit in plan.units:
        if unit.scheme is not Scheme.LOCAL:
            members = members_of([(name, parameters[name]) for name in unit.params])
            wiring = Wiring(unit, members, transport, plan.order)
            if plan.pattern == GPI and unit.scheme.is_dense:
                own = [flow for flow in flows if flow.send.unit == unit.index]
                exchanges.append(FlowExchange(wiring, own))
            elif plan.pattern == GPI and unit.scheme is Scheme.FACTORS:
                layout = factor_layout(net, members, iter_size)
                exchanges.append(PutFactors(wiring, layout, threads))
            else:
                exchanges.append(_exchange(wiring, plan.wire, net, iter_size, threads))
    return exchanges


def _exchange(wiring: Wiring, wire: str, net: Net, iter_size: int, threads: Threads | None) -> Exchange:
    narrow = _narrow_dtype(wire, wiring)
    layout = partial(factor_layout, net, wiring.members, iter_size)
    makers: dict[Scheme, Callable[[], Exchange]] = {
        Scheme.RING: lambda: dense_exchange(wiring, wire),
        Scheme.DOUBLING: lambda: dense_exchange(wiring, wire),
        Scheme.SERVER: lambda: _dense(wiring, Server if narrow is None else partial(NarrowServer, dtype=narrow)),
        Scheme.FACTORS: lambda: Factors(wiring, layout(), threads),
        Scheme.FACTOR_SERVER: lambda: FactorServer(wiring, layout(), narrow, threads),
        Scheme.ROWS: lambda: Rows(wiring),
    }
    return makers[wiring.unit.scheme]()


def dense_exchange(wiring: Wiring, wire: str) -> Exchange:
    """The sum of a unit for everybody, around a ring over a wire of this width, or in pairs."""
    if wiring.unit.scheme is Scheme.DOUBLING:
        return _dense(wiring, Doubling)
    narrow = _narrow_dtype(wire, wiring)
    return _dense(wiring, Ring if narrow is None else partial(NarrowRing, dtype=narrow))


def _dense(wiring: Wiring, make: Callable[[Wiring], Exchange]) -> Exchange:
    return Several(wiring, make) if len(groups_of(wiring.members)) > 1 else make(wiring)


def _narrow_dtype(wire: str, wiring: Wiring) -> torch.dtype | None:
    """What dense elements are narrowed to; None if they travel as they are.

    So do those that have 16 bits already, and all on a single node: nothing crosses a network there.
    """
    is_wide = wiring.members[0].parameter.element_size() > 2
    levels = wiring.transport.levels
    crosses = levels is None or len(levels.node_workers) > 1
    return NARROW_DTYPES.get(wire) if is_wide and crosses else None


def factor_layout(net: Net, members: Sequence[Member], iter_size: int) -> FactorLayout:
    """How many rows of factors all readers of a unit's weights give in an iteration, as many for each weight; and which
    are stored transposed."""
    num_rows: Counter[str] = Counter()
    transposed = set()
    names = {member.parameter: member.name for member in members}
    for node in net.graph.nodes:
        layer = node.layer
        name = names.get(layer.param_owner(0)) if isinstance(layer, InnerProduct) else None
        if isinstance(layer, InnerProduct) and name is not None and node.needs_backward:
            num_rows[name] += layer.num_rows(node.bottom_shapes[0])
            if layer.spec.inner_product_param.transpose:
                transposed.add(name)
    return FactorLayout(max(num_rows.values()) * iter_size, frozenset(transposed))
