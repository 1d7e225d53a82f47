"""Replica: one worker's copy of the model, and its part in the team.

Life: the workers compare their models and take rank 0's values. The first iterations are measured, with a first plan;
then all agree on a plan (planning.py) and go on with it. It is renewed, after measuring anew, when batch sizes stay
changed or factors keep going dense (habits.py), when parameters are frozen or unfrozen, and when the user asks. All of
this is decided from words that all workers hear (words.py), in the same iteration.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from poseidon.comm.free_factors import FreeFactors, Tally
from poseidon.errors import UsageError
from poseidon.parallel.buffers import copy_buffers, copy_parameters
from poseidon.parallel.gates import set_gates
from poseidon.parallel.gradients import Gradients
from poseidon.parallel.habits import Habits
from poseidon.parallel.holdings import hold_parameters, let_go
from poseidon.parallel.inventory import Inventory
from poseidon.parallel.measured import Measuring
from poseidon.parallel.planning import Wishes, first_plan, plan_together
from poseidon.parallel.reading import ReadWatch
from poseidon.parallel.structure import Structure, find_structure
from poseidon.parallel.taker import Taker
from poseidon.parallel.traffic import Agreed, Traffic
from poseidon.parallel.words import Saying, Word, check_alike
from poseidon.plan import Scheme
from poseidon.run.cards import agree_on_threads
from poseidon.run.facts import Fact, check_facts, version_facts
from poseidon.run.roundtable import Roundtable
from poseidon.transport import Transport

# What backward does not compute any more: the gradient of a weight, or of a whole table.
_LEAVE_BACKWARD = (Scheme.FACTORS, Scheme.FACTOR_SERVER, Scheme.ROWS)


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    wishes: Wishes = field(default_factory=Wishes)
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True


class Replica:
    def __init__(self, model: nn.Module, transport: Transport, options: ReplicaOptions) -> None:
        self.model, self.transport, self.options = model, transport, options
        self.table = Roundtable(transport)
        self.taker = Taker()
        self.structure = find_structure(model)
        check_facts(version_facts(), self.table)
        check_facts(_model_facts(self.structure, model, options), self.table)
        self._threads = agree_on_threads(self.table)
        copy_parameters(model, self.table)
        copy_buffers(model, self.table)
        self.syncs = True  # false under no_sync
        self.joining = False  # inside Join: workers may run out of data
        self.divides_by_all = True
        self._num_active = transport.size
        self._root = 0  # whose buffers count
        self._buffers_are_due = True
        self._sayings: list[Saying] = []
        self._wire_state: dict[str, dict[str, Tensor]] = {}
        self._gate_units: dict[str, tuple[int, ...]] = {}
        self._held: list[nn.Module] = []
        options.wishes.check(self.structure)
        self._connect()

    # -- plans ------------------------------------------------------------------------------------------------------
    def _connect(self) -> None:
        """Hooks, gates, the first plan; measuring begins."""
        self._inventory = Inventory(self.model)
        self._fingerprint = self._inventory.fingerprint()
        self._habits = Habits()
        self.gradients = Gradients(
            self.structure, allows_unused=self.options.find_unused_parameters, on_complete=self._complete
        )
        self._gates = set_gates(self.structure, self._enter)
        self.taker.refresh()
        self._hold()
        self.measuring: Measuring | None = None
        self.reads: dict[str, list[str]] = {}
        self._open(first_plan(self.structure, self.transport.size, self.options.wishes.wire))
        self.measure()

    def _hold(self) -> None:
        """While updates can be on their way after a step, nobody gets a parameter without waiting for its own."""
        let_go(self._held)
        self._held = hold_parameters(self.model, self.structure, self._ask) if self.taker.overlaps else []

    def _disconnect(self) -> None:
        self._end_traffic()
        self._let_go()

    def _let_go(self) -> None:
        """The model is as it was, but for its values."""
        self.gradients.close()
        for gate in self._gates:
            gate.remove()
        let_go(self._held)
        self._held = []

    def _use(self, agreed: Agreed) -> None:
        self._end_traffic()
        self._open(agreed)

    def _end_traffic(self) -> None:
        self.traffic.scheduler.drain()
        self._wire_state = self.wire_state()
        self.traffic.close()

    def _open(self, agreed: Agreed) -> None:
        """Exchanges by this plan from now on."""
        self.plan = agreed.plan
        self.traffic = Traffic(agreed, self.structure, self.transport, self._sparse(), self._threads)
        self.traffic.restore(self._wire_state)
        self.gradients.scale = 1.0 / self.transport.size
        self.gradients.use(self.traffic)
        self._set_gate_units()

    def _sparse(self) -> frozenset[str]:
        """The tables whose summed gradients are wanted as rows."""
        params = self.structure.params.items()
        return frozenset(name for name, p in params if p.sparse or (p.rows and self.taker.wants_rows(p.parameter)))

    def _set_gate_units(self) -> None:
        """By module: the units it has to wait for. One that nobody has watched reading waits for everything."""
        everything = tuple(exchange.unit.index for exchange in self.traffic.exchanges)
        self._gate_units = dict.fromkeys(self.structure.readers, everything)
        if self.structure.atoms:  # nothing could be watched
            return
        units = {name: exchange.unit.index for name, (exchange, _) in self.traffic.of.items()}
        for module, names in self.reads.items():
            self._gate_units[module] = tuple(dict.fromkeys(units[name] for name in names if name in units))

    def measure(self) -> None:
        """From the next iteration on passes are measured, then planned anew. All workers call it together."""
        self.measuring = Measuring(self.structure, self.gradients.forwards)
        self.gradients.holds = True

    def replan(self) -> None:
        """The same because the user wants it: whatever was noticed before is forgotten."""
        self._habits = Habits()
        self.measure()

    def _renew(self) -> None:
        measuring = self.measuring
        assert measuring is not None
        self.reads = measuring.seen_reads()
        agreed = plan_together(
            self.structure,
            measuring,
            self.transport,
            self.table,
            self.options.wishes,
            needs_all_gradients=self.taker.needs_all_gradients,
            cluster=self.plan.cluster if measuring.is_again else None,
        )
        self._use(agreed)
        if not measuring.is_again and any(unit.scheme in _LEAVE_BACKWARD for unit in self.plan.units):
            measuring.repeat()
            return
        self.measuring = None
        self.gradients.holds = False
        self._habits.forget()

    def install(self, taker: Taker) -> None:
        """Rounds end at this taker's from now on. The plan is made anew, for its needs."""
        self.traffic.scheduler.drain()
        self.taker = taker
        self._hold()
        self._use(first_plan(self.structure, self.transport.size, self.options.wishes.wire))
        self.measure()

    # -- a forward pass ---------------------------------------------------------------------------------------------
    def before_forward(self, inputs: Any) -> None:
        self._check_unchanged()
        learns = torch.is_grad_enabled()
        counts = learns and self.syncs
        if counts:
            self._begin_iteration(inputs)
        elif learns:
            self.gradients.begin_forward(syncs=False)
        if self._buffers_are_due and self.options.broadcast_buffers:
            copy_buffers(self.model, self.table, self._root)
        self._buffers_are_due = counts

    def _begin_iteration(self, inputs: Any) -> None:
        if self.gradients.arrived:
            raise self.gradients.unfinished()
        fingerprint = self._inventory.fingerprint()
        saying = Saying(Word(fingerprint, _batch_of(inputs), self._num_dense()), self.table)
        if fingerprint != self._fingerprint:
            check_alike(saying.heard())
            self._disconnect()
            self.structure = find_structure(self.model)
            self._connect()
        elif self.measuring is not None and self.measuring.is_over:
            self._renew()
        is_first = not self._sayings  # there may be several forward passes to one backward pass
        self._sayings.append(saying)
        self._count_active(saying)
        self.gradients.begin_forward(syncs=True)
        if self.measuring is not None and is_first:
            self.wait()  # what is timed must not include it
            self.measuring.begin()

    def _count_active(self, saying: Saying) -> None:
        """Who still has data; nobody waits to know, except inside Join."""
        if not self.joining and self._num_active == self.transport.size:
            return
        active = [rank for rank, word in enumerate(saying.heard()) if word.active]
        self._num_active, self._root = len(active), active[0]
        num_counted = self.transport.size if self.divides_by_all else len(active)
        self.gradients.scale = 1.0 / num_counted

    def keep_company(self) -> None:
        """An iteration of the others', for a worker without data."""
        self.wait()
        saying = Saying(Word(self._fingerprint, 0, active=0), self.table)
        if self.measuring is not None and self.measuring.is_over:
            self._renew()
        self._count_active(saying)
        if self._buffers_are_due and self.options.broadcast_buffers:
            copy_buffers(self.model, self.table, self._root)
        self._buffers_are_due = True
        words = saying.heard()
        check_alike(words)
        if self.options.find_unused_parameters:
            self._used(set())
        self.gradients.pass_on_nothing()
        self.wait()
        if self.measuring is not None:
            self.measuring.skip()
        else:
            self._notice(words)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Around the model's own forward pass."""
        measuring = self.measuring
        if measuring is None or not self.gradients.syncs or not torch.is_grad_enabled():
            yield
            return
        if measuring.watches:
            watch = ReadWatch(self.structure.named())
            with watch.over(self.model):
                yield
            measuring.readers = watch.readers
        else:
            yield
        measuring.end_forward()

    def after_forward(self, outputs: Any) -> None:
        """Backward begins at one of the outputs."""
        if not torch.is_grad_enabled():
            return
        for tensor in _tensors_in(outputs):
            if tensor.requires_grad:
                tensor.register_hook(self._on_backward)

    def _on_backward(self, grad: Tensor) -> None:
        self.gradients.begin_backward()

    def _enter(self, module: str) -> None:
        if self.measuring is not None:
            self.measuring.enter(module)
        self._wait_for(self._gate_units.get(module, ()))

    def _ask(self, names: Iterable[str]) -> None:
        self._wait_for(self.traffic.of[name][0].unit.index for name in names if name in self.traffic.of)

    def _wait_for(self, units: Iterable[int]) -> None:
        """Until their updates are in. Those of this round come after its step: inside its backward pass, where layers
        are computed again or hooks look at weights, there is nothing to wait for but what this pass has yet to bring.
        """
        if self.taker.overlaps and not self.gradients.arrived:
            for unit in units:
                self.traffic.scheduler.wait(unit)

    def _check_unchanged(self) -> None:
        if not self._inventory.holds():
            raise UsageError(
                "the model's parameters are not those it had when it was wrapped (a layer was added or replaced, or "
                "the model moved to another device or dtype): change the model first, then wrap it in Parallel, and "
                "give the optimizer its parameters after that"
            )

    # -- the end of backward ----------------------------------------------------------------------------------------
    def _complete(self, reached: set[str]) -> None:
        words: list[Word] = []
        for saying in self._sayings:
            words = saying.heard()
            check_alike(words)
        self._sayings.clear()
        used = self._used(reached) if self.options.find_unused_parameters else None
        round_ = self.gradients.round
        assert round_ is not None
        if self.measuring is not None:
            self.measuring.end(self.gradients.arrived)
        self.taker.take(self, round_, lambda name: used is None or name in used)
        if words and self.measuring is None:
            self._notice(words)

    def _used(self, reached: set[str]) -> set[str]:
        """The parameters that any worker's loss depends on."""
        names = list(self.traffic.of)
        counts = self.table.sum(torch.tensor([float(name in reached) for name in names]))
        return {name for name, count in zip(names, counts.tolist(), strict=True) if count}

    def _notice(self, words: list[Word]) -> None:
        """Whether iterations are still what the plan was made for; all workers come to the same conclusion."""
        if self._habits.have_changed(words) or (self._habits.may_be_dense(words) and self._keep_going_dense()):
            self._habits.bear_more()
            self.measure()

    def _tallies(self) -> dict[str, Tally]:
        """By weight that travels as factors."""
        found: dict[str, Tally] = {}
        for exchange in self.traffic.exchanges:
            if isinstance(exchange, FreeFactors):
                found |= exchange.tallies
        return found

    def _num_dense(self) -> int:
        return max((max(tally.num_dense, tally.num_short) for tally in self._tallies().values()), default=0)

    def _keep_going_dense(self) -> bool:
        """Whether factors go dense too often. Those of weights that have a dense gradient besides are given up."""
        self.wait()  # then all workers have counted the same
        patience, found = self._habits.patience, self._tallies()
        dense = [name for name, tally in found.items() if tally.num_dense >= patience]
        for name in dense:
            param = self.structure.params[name]
            param.factors = False
            param.why_dense = (
                "its gradient is more than its layer's factors: it adds up over passes under no_sync(), was zeroed "
                "instead of set to None, or comes from somewhere else besides"
            )
        return bool(dense) or any(tally.num_short >= patience for tally in found.values())

    # -- everything -------------------------------------------------------------------------------------------------
    def wait(self) -> None:
        """Returns when nothing is on its way any more."""
        self.traffic.scheduler.drain()

    def wire_state(self) -> dict[str, dict[str, Tensor]]:
        """What this worker owes the others, by the names of a unit's parameters; also of units that are not there
        while passes are measured, until others have taken their parameters over."""
        live = self.traffic.state()
        taken_over = {name for names in live for name in names.split(" ")}
        waiting = {names: own for names, own in self._wire_state.items() if not taken_over.issuperset(names.split(" "))}
        return {**waiting, **live}

    def restore_wire_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.wait()
        self._wire_state = {name: dict(entry) for name, entry in state.items()}
        self.traffic.restore(self._wire_state)

    def close(self) -> None:
        self.taker.end()
        self.traffic.close()
        self._let_go()


def _tensors_in(found: Any) -> Iterator[Tensor]:
    """In containers, mappings and dataclasses, as models take and give them."""
    for leaf in _pytree.tree_leaves(found):
        if isinstance(leaf, Tensor):
            yield leaf
        elif isinstance(leaf, Mapping):
            yield from _tensors_in(list(leaf.values()))
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _tensors_in([getattr(leaf, entry.name) for entry in dataclasses.fields(leaf)])


def _batch_of(inputs: Any) -> int:
    """The leading extent of the first tensor among a forward pass's inputs; 0 if there is none."""
    return next((tensor.shape[0] for tensor in _tensors_in(inputs) if tensor.dim()), 0)


def _model_facts(structure: Structure, model: nn.Module, options: ReplicaOptions) -> list[Fact]:
    same = "build the same model on all workers before wrapping it"
    params = "\n".join(
        f"{name} {tuple(p.parameter.shape)} {p.parameter.dtype} {'learns' if p.parameter.requires_grad else 'frozen'}"
        for name, p in structure.params.items()
    )
    buffers = "\n".join(f"{name} {tuple(buffer.shape)} {buffer.dtype}" for name, buffer in model.named_buffers())
    return [
        Fact("model's parameters", params, same),
        Fact("model's buffers", buffers, same),
        Fact("model's layers", structure.told(), same + ", with the same options, hooks and compiled modules"),
        Fact("options of Parallel", repr(options), "wrap the model with the same options on all workers"),
    ]
