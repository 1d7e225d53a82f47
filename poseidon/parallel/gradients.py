"""Gradients: where they leave the model during backward, and where they come back.

A round goes through these states:

    CLOSED      nothing is final yet
    OPEN        some gradients are final. They are exchanged as they come; `grad` is empty meanwhile
    CLOSED      all were final, and backward is over: `grad` has the averages, or a stand-in (overlapping.py)

Whether a backward pass counts is decided by its forward pass, as in DistributedDataParallel: under `no_sync` gradients
only add up in `grad`, and go out with those of the first pass that counts. Several passes may make up a round, if each
gives its own parameters; a parameter that gets a second gradient within a round is an error.

Factors belong to the backward pass they were made in. A pass that does not end in the weight (torch.autograd.grad)
leaves some behind; they are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from poseidon.comm.exchange import Exchange, laid_out_like, own_memory
from poseidon.comm.factors import Factored
from poseidon.comm.free_factors import FreeFactors
from poseidon.comm.part import Member
from poseidon.comm.rows import Rows
from poseidon.errors import UsageError
from poseidon.parallel.destination import Destination, Leaf
from poseidon.parallel.forwards import EmbeddingForward, Forward, LinearForward
from poseidon.parallel.pending import PendingGrad
from poseidon.parallel.round import Round
from poseidon.parallel.structure import Structure
from poseidon.parallel.traffic import Traffic

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Way:
    """Where a parameter's gradient goes. `factors`: the exchange again, if it is one of these, and of which weight."""

    exchange: Exchange
    member: Member
    unit: int
    is_dense: bool
    factors: tuple[FreeFactors, Factored] | None


def _way(exchange: Exchange, member: Member) -> _Way:
    factors = (exchange, exchange.factored(member.name)) if isinstance(exchange, FreeFactors) else None
    return _Way(exchange, member, exchange.unit.index, exchange.unit.scheme.is_dense, factors)


class Gradients:
    """Connects a model's parameters to traffic.

    on_complete   is called at the end of the backward pass that completed a round, with the names that got a gradient
    """

    def __init__(self, structure: Structure, *, allows_unused: bool, on_complete: Callable[[set[str]], None]) -> None:
        self._structure = structure
        self._allows_unused = allows_unused
        self._on_complete = on_complete
        self._names = structure.named()
        self._traffic: Traffic | None = None
        self._ways: dict[str, _Way] = {}
        self._missing: dict[int, set[str]] = {}
        self._tasks: dict[str, int] = {}  # by weight: the backward pass whose factors are coming in
        self._queued_in: int | None = None
        self.arrived: dict[str, float] = {}  # in this round, with the time
        self.round: Round | None = None
        self.syncs = True  # what the last forward pass was for
        self.scale = 1.0  # of sums, in rounds to come
        self.holds = False  # gradients leave at the end of backward, so that passes can be timed undisturbed
        self.forwards = self._put_forwards()
        self._hooks = [
            found.parameter.register_post_accumulate_grad_hook(partial(self._final, name))
            for name, found in structure.params.items()
            if found.parameter.requires_grad
        ]

    # -- plans ------------------------------------------------------------------------------------------------------
    def use(self, traffic: Traffic) -> None:
        """Exchanges by this plan from now on. No round may be open."""
        assert not self.arrived, "a round is open"
        self._traffic = traffic
        self._ways = {name: _way(*found) for name, found in traffic.of.items()}
        for forward in self.forwards.values():
            way = self._ways.get(self._names[forward.weight])
            if isinstance(forward, LinearForward):
                self._connect(forward, way)
            elif isinstance(forward, EmbeddingForward):
                forward.gives_rows = way is not None and isinstance(way.exchange, Rows)
        self._new_round()

    def _connect(self, forward: LinearForward, way: _Way | None) -> None:
        if way is None or way.factors is None:
            forward.tap, forward.taps_bias = None, False
            return
        forward.tap = partial(self._tap, *way.factors)
        bias = getattr(forward.module, "bias", None)
        forward.taps_bias = bias is not None and way.factors[0].follows(bias, forward.weight)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for forward in self.forwards.values():
            if vars(forward.module).get("forward") is forward:
                del forward.module.forward

    # -- a forward pass ---------------------------------------------------------------------------------------------
    def begin_forward(self, *, syncs: bool) -> None:
        """Before a pass that gives gradients."""
        if syncs and self.arrived:
            raise self.unfinished()
        self.syncs = syncs
        if self.round is not None:
            self.round.scale = self.scale
        for forward in self.forwards.values():
            forward.is_on = syncs

    def begin_backward(self) -> None:
        """Before the first gradient: whatever stands in `grad` is real."""
        left = []
        for name, found in self._structure.params.items():
            grad = found.parameter.grad
            if isinstance(grad, PendingGrad):
                if grad.is_zeroed:
                    found.parameter.grad = None
                elif Leaf(found.parameter).destination() is Destination.ADDED:
                    left.append(name)
        if left:
            raise UsageError(
                f"backward would add to gradients that the optimizer already has ({_some(left)}): call zero_grad() "
                "after each step; to accumulate over several batches, run all but the last under model.no_sync()"
            )
        if self.syncs and self._allows_unused:
            self._queue()

    def unfinished(self) -> UsageError:
        """What is wrong if a round is still open when it should not be."""
        left = [name for name in self._ways if name not in self.arrived]
        return UsageError(
            f"{len(left)} parameter(s) got no gradient in the last backward pass ({_some(left)}), so its exchange is "
            "not complete. If the loss does not depend on them in every iteration, wrap the model with "
            "Parallel(…, find_unused_parameters=True); if they are not to learn, set requires_grad_(False) on them "
            "before wrapping; if several losses are to be added up, call backward on their sum"
        )

    # -- backward ---------------------------------------------------------------------------------------------------
    def _tap(self, exchange: FreeFactors, factored: Factored, u: Tensor, v: Tensor) -> None:
        assert self.round is not None
        self._keep_only_this_pass(exchange, factored)
        exchange.scale = self.round.scale
        exchange.tap(factored, u, v)

    def _keep_only_this_pass(self, exchange: FreeFactors, factored: Factored) -> None:
        """Drops what an earlier pass has left of a parameter's factors, unless the round has taken some of it."""
        task = torch._C._current_graph_task_id()
        if self._tasks.get(factored.weight.name) != task:
            self._tasks[factored.weight.name] = task
            self._forget_unless_taken(exchange, factored)

    def _forget_unless_taken(self, exchange: FreeFactors, factored: Factored) -> None:
        if not any(member.name in self.arrived for member in factored.members):
            exchange.forget(factored)

    def _final(self, name: str, parameter: Tensor) -> None:
        way = self._ways.get(name)
        if way is None or not self.syncs:
            return
        if name in self.arrived:
            raise UsageError(
                f"parameter {name!r} got a second gradient before all others had their first, so the first is on its "
                "way already. Call backward once on the sum of the losses; or run all backward passes but the last "
                "under model.no_sync(), forward passes included; with activation checkpointing pass "
                "use_reentrant=False"
            )
        if way.factors is not None:
            self._keep_only_this_pass(*way.factors)
        self.arrived[name] = time.perf_counter()
        if not self.holds:
            self._offer(name, way)
        if self._allows_unused or len(self.arrived) == len(self._ways):
            self._queue()

    def _offer(self, name: str, way: _Way) -> None:
        assert self._traffic is not None
        assert self.round is not None
        self._traffic.scheduler.wait(way.unit)
        parameter = way.member.parameter
        grad = parameter.grad
        if way.is_dense:
            grad = self.round.memory[name] = own_memory(laid_out_like(way.member.value, grad))
        elif way.factors is not None:
            # If no pass of this round has reached it, what it has is left over.
            self._forget_unless_taken(*way.factors)
            way.factors[0].scale = self.round.scale
            self.round.means.add(name)
        way.exchange.offer(way.member, grad)
        parameter.grad = None  # it is the exchange's now
        missing = self._missing[way.unit]
        missing.discard(name)
        if not missing:
            self._traffic.scheduler.ready(way.unit, self.round)

    def _queue(self) -> None:
        """At the end of this backward pass, `_finish`."""
        task = torch._C._current_graph_task_id()
        if self._queued_in != task:
            self._queued_in = task
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        self._queued_in = None
        everything = self._ways.keys()
        if not self._allows_unused and len(self.arrived) < len(everything):
            return  # another backward pass may bring the rest
        reached = {name for name in everything if name in self.arrived or self._has_grad(name)}
        order = [*self.arrived, *(name for name in everything if name not in self.arrived)]
        for name in order:
            way = self._ways[name]
            if name in self._missing[way.unit]:
                self._offer(name, way)
        self._on_complete(reached)
        self._new_round()

    def pass_on_nothing(self) -> None:
        """A round of zeros, for a worker that has no more data while others have. Its gradients are nobody's."""
        assert self.round is not None
        assert not self.arrived, "a round is open"
        self.round.scale = self.scale
        kept = {name: way.member.parameter.grad for name, way in self._ways.items()}
        for name, way in self._ways.items():
            way.member.parameter.grad = None
            self._offer(name, way)
        for name, way in self._ways.items():
            way.member.parameter.grad = kept[name]
        self._new_round()

    def _has_grad(self, name: str) -> bool:
        return self._structure.params[name].parameter.grad is not None

    def _new_round(self) -> None:
        assert self._traffic is not None
        self.arrived = {}
        self.round = Round(self.scale, self._traffic.sparse)
        self._missing = {
            exchange.unit.index: {member.name for member in exchange.members} for exchange in self._traffic.exchanges
        }

    def _put_forwards(self) -> dict[str, Forward]:
        """By module name, in place of the modules' own."""
        found: dict[str, Forward] = {}
        for described in self._structure.params.values():
            for holder in described.holders:
                if holder.attribute != "weight" or not (described.factors or described.rows):
                    continue
                kind = LinearForward if described.factors else EmbeddingForward
                if isinstance(holder.module, nn.Linear if described.factors else nn.Embedding):
                    found[holder.module_name] = holder.module.forward = kind(holder.module)  # type: ignore[assignment]
        return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
