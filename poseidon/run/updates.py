"""Updates over P workers: gradients leave as they become final, the rule is applied where and when they come together.

What the solver's loop sees is the protocol of `poseidon/solver/updates.py`: `start` arms the taps before the last
backward pass, `finish` returns without waiting (unless clip_gradients needs all gradients), `drain` waits.

    reduce = "average"   the trajectory of one worker with the P-fold batch: the sum is divided by P
    reduce = "sum"       PMLS-Caffe's rule: nothing is divided
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from poseidon.comm import Part, Scheduler, Taps, make_exchanges
from poseidon.comm.conductor import Conductor
from poseidon.comm.events import CommListener
from poseidon.comm.notified.driver import NotifiedScheduler
from poseidon.comm.notified.memory import Memory
from poseidon.comm.threads import Threads
from poseidon.plan import GPI, CommPlan, Scheme
from poseidon.run.rule_site import RuleSite
from poseidon.solver import Solver
from poseidon.solver.clip import Clipping
from poseidon.solver.rules import Hyper
from poseidon.transport import Transport

_STATE_OF = " owes "  # between a unit's first parameter and what its exchange remembers


class DistributedUpdates:
    """The solver's `updates` on one of P workers. `close` it when training is over."""

    def __init__(
        self,
        solver: Solver,
        plan: CommPlan,
        transport: Transport,
        *,
        averages: bool = True,
        threads: Threads | None = None,
        listener: CommListener | None = None,
    ) -> None:
        self.plan = plan
        self._transport = transport
        self._clip_limit = solver.param.clip_gradients
        self._divisor = transport.size if averages else 1
        self._still = [name for unit in plan.units if unit.scheme is Scheme.LOCAL for name in unit.params]
        self.exchanges = make_exchanges(solver.net, plan, transport, solver.param.iter_size, threads)
        memory = Memory(plan, self.exchanges, transport) if plan.pattern == GPI else None  # moves parameters
        self._site = RuleSite(solver.rule, solver.slots, self.exchanges, transport)
        self.carriers = "" if memory is None else memory.endpoint.kind
        self._endpoint = None if memory is None else memory.endpoint
        self.scheduler: Conductor[Any]
        if memory is None:
            self.scheduler = Scheduler(plan, self.exchanges, self._site.apply, listener)
        else:
            self.scheduler = NotifiedScheduler(plan, self.exchanges, self._site.apply, memory, listener)
        self._taps = Taps(solver.net, self.exchanges, self.scheduler)
        self._hyper: Hyper | None = None
        self.waited_s = 0.0  # for what clip_gradients needs

    @property
    def put_bytes(self) -> int:
        """What notified puts have sent over a network; 0 where some go through shared memory: not told apart."""
        endpoint = self._endpoint
        return 0 if endpoint is None or "shared memory" in endpoint.links else endpoint.bytes_sent

    def begin(self) -> None:
        self._taps.begin()

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

    def histories(self) -> list[Tensor]:
        return self._site.histories()

    def restore_histories(self, histories: Sequence[Tensor]) -> None:
        self._site.restore(histories)

    def hand_back(self) -> None:
        """Makes the solver whole, so that somebody else can apply its updates. All workers call it, after `drain`."""
        self._site.hand_back()

    def wire_state(self) -> dict[str, Tensor]:
        """What this worker still owes the others, where they exchange less than full width: for a snapshot."""
        return {
            f"{exchange.unit.params[0]}{_STATE_OF}{name}": tensor
            for exchange in self.exchanges
            for name, tensor in exchange.state().items()
        }

    def restore_wire_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from what `wire_state` gave on the same worker with the same plan; units not in it owe nothing."""
        for exchange in self.exchanges:
            start = f"{exchange.unit.params[0]}{_STATE_OF}"
            own = {name.removeprefix(start): tensor for name, tensor in state.items() if name.startswith(start)}
            exchange.restore(own)

    def close(self, *, wait: bool = True) -> None:
        """Whether others are waited for (`wait`) is of no account: nobody needs this worker for anything else."""
        self._taps.close()
        self.scheduler.close()

    def _clip(self) -> Clipping | None:
        """Scales all gradients down to the limit, over every worker's parts, and lets the updates go."""
        begun_s = time.perf_counter()
        parts = self.scheduler.wait_reduced()
        norm = self._global_norm(parts) / self._divisor
        self.waited_s += time.perf_counter() - begun_s
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
        total += torch.linalg.vector_norm(tensor, dtype=torch.float64).square().cpu()
    return total
