"""Updates over P workers: gradients leave as they become final, the rule is applied where and when they come together.

What the solver's loop sees is the protocol of `poseidon/solver/updates.py`: `start` arms the taps before the last
backward pass, `finish` returns without waiting (unless clip_gradients needs all gradients), `drain` waits.

    reduce = "average"   the trajectory of one worker with the P-fold batch: the sum is divided by P
    reduce = "sum"       PMLS-Caffe's rule: nothing is divided
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from poseidon.comm import Member, Part, Region, Scheduler, Taps, make_exchanges
from poseidon.comm.events import CommListener
from poseidon.plan import CommPlan, Scheme
from poseidon.solver import Solver
from poseidon.solver.clip import Clipping
from poseidon.solver.rules import Hyper, Rule, Slot
from poseidon.transport import Transport


class RuleSite:
    """Applies a rule to parts of parameters; the history of each part is a view of the parameter's own."""

    def __init__(self, rule: Rule, slots: Sequence[Slot]) -> None:
        self._rule = rule
        self._slots = {slot.name: slot for slot in slots}
        self._parts: dict[tuple[str, Region], Slot] = {}

    def apply(self, parts: Sequence[Part], hyper: Hyper) -> None:
        if parts:
            self._rule.update(
                [self._slot(part.member, part.region) for part in parts], [part.grad for part in parts], hyper
            )

    def apply_still(self, names: Sequence[str], hyper: Hyper) -> None:
        """The rule on parameters that get no gradient: their histories fade as they would on one worker."""
        slots = [self._slots[name] for name in names]
        if slots and not self._rule.rests_when_frozen:
            self._rule.update(slots, [torch.zeros_like(slot.value) for slot in slots], hyper)

    def _slot(self, member: Member, region: Region) -> Slot:
        found = self._parts.get((member.name, region))
        if found is None:
            whole = self._slots[member.name]
            found = Slot(
                name=whole.name,
                value=region.of(member.value),
                history=tuple(region.of(history) for history in whole.history),
                rate_mult=whole.rate_mult,
                decay_mult=whole.decay_mult,
            )
            self._parts[member.name, region] = found
        return found

    def forget(self) -> None:
        """Histories were exchanged for others."""
        self._parts.clear()


class DistributedUpdates:
    """The solver's `updates` on one of P workers. `close` it when training is over."""

    def __init__(
        self,
        solver: Solver,
        plan: CommPlan,
        transport: Transport,
        *,
        averages: bool = True,
        listener: CommListener | None = None,
    ) -> None:
        self.plan = plan
        self._transport = transport
        self._clip_limit = solver.param.clip_gradients
        self._divisor = transport.size if averages else 1
        self._site = RuleSite(solver.rule, solver.slots)
        self._still = [name for unit in plan.units if unit.scheme is Scheme.LOCAL for name in unit.params]
        exchanges = make_exchanges(solver.net, plan, transport)
        self.scheduler = Scheduler(plan, exchanges, self._site.apply, listener)
        self._taps = Taps(solver.net, exchanges, self.scheduler)
        self._hyper: Hyper | None = None

    def start(self, hyper: Hyper) -> None:
        self._hyper = replace(hyper, iter_size=hyper.iter_size * self._divisor)
        self._taps.arm(self._hyper)

    def finish(self) -> Clipping | None:
        assert self._hyper is not None, "start comes before finish"
        self._taps.complete()
        self._site.apply_still(self._still, self._hyper)
        return self._clip() if self.plan.barrier else None

    def drain(self) -> None:
        self.scheduler.drain()

    def history_changed(self) -> None:
        self._site.forget()

    def close(self) -> None:
        self._taps.close()
        self.scheduler.close()

    def _clip(self) -> Clipping | None:
        """Scales all gradients down to the limit, over every worker's parts, and lets the updates go."""
        parts = self.scheduler.wait_reduced()
        norm = self._global_norm(parts) / self._divisor
        clipping = None
        if norm > self._clip_limit:
            clipping = Clipping(norm, self._clip_limit)
            for part in parts:
                part.grad.mul_(clipping.factor)
        self.scheduler.release()
        return clipping

    def _global_norm(self, parts: Sequence[Part]) -> float:
        """The norm of the summed gradient: parts that all workers have count once, the others at their owners."""
        shared = _square_sum([part.grad for part in parts if part.everywhere])
        own = _square_sum([part.grad for part in parts if not part.everywhere])
        self._transport.all_reduce(own).wait()
        return math.sqrt(float(shared + own))


def _square_sum(tensors: Sequence[Tensor]) -> Tensor:
    total = torch.zeros(1, dtype=torch.float64)
    for tensor in tensors:
        total += tensor.double().square().sum()
    return total
