"""What a snapshot keeps for a team, in the sidecar's `team`:

    plan       the communication plan: how sums are taken decides their last bits, so who goes on with as many workers
               goes on with the same plan
    workers    by rank: the losses its mean is taken over, what its recurrent layers carry into the next pass, and what
               a narrow wire still owes

What is owed are tensors as large as the net; they are kept in a file of their own (poseidon/solver/attached.py).

Everything else is the same on all workers and stands where one worker has it too. With another number of workers the
plan is a new one, every worker takes the mean losses, recurrent layers begin from zero, and nothing is owed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from poseidon.plan import CommPlan
from poseidon.run.roundtable import Roundtable
from poseidon.run.updates import DistributedUpdates
from poseidon.solver import Solver
from poseidon.solver.attached import Attached
from poseidon.solver.continuation import carried_state, restore_carried
from poseidon.solver.smoothing import LossWindow
from poseidon.solver.snapshot import open_snapshot


@dataclass(frozen=True, slots=True)
class Brought:
    """What a snapshot brings for the exchanges: its plan, and what this worker still owes by it."""

    plan: CommPlan | None = None
    owed: Mapping[str, Attached] = field(default_factory=dict)

    def read_owed(self) -> dict[str, Tensor]:
        return {name: attached.read() for name, attached in self.owed.items()}


class WorkerStates:
    """Restoring is each worker's own affair: what it brings for the exchanges waits until all have compared notes."""

    def __init__(self, solver: Solver, table: Roundtable) -> None:
        self._solver = solver
        self._table = table
        self._brought = Brought()

    def state(self, plan: CommPlan) -> dict[str, Any]:
        """All workers call it, and rank 0 gets everybody's; `plan` is the one in use."""
        solver = self._solver
        own = {"losses": solver.window.state(), "carried": carried_state(solver.net)}
        workers = [json.loads(text) for text in self._table.collect_texts(json.dumps(own))]
        owed = solver.updates.wire_state() if isinstance(solver.updates, DistributedUpdates) else {}
        for worker, tensors in zip(workers, self._table.collect_tensors(owed), strict=True):
            worker["wire"] = tensors
        return {"plan": plan.to_json(), "workers": workers}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        solver, net = self._solver, self._solver.net
        if num_workers(state) != self._table.size:
            restore_carried(net, {name: [] for name in carried_state(net)})
        elif state is not None:
            own = state["workers"][self._table.rank]
            restore_carried(net, own["carried"])
            solver.continue_window(LossWindow.from_state(solver.param.average_loss, own["losses"], net.dtype))
            self._brought = Brought(CommPlan.from_json(state["plan"]), dict(own["wire"]))

    def brought(self) -> Brought:
        """What the last restored snapshot brings; asked once after each."""
        found, self._brought = self._brought, Brought()
        return found


def num_workers(state: Mapping[str, Any] | None) -> int:
    """How many workers there were when a state was taken."""
    return 1 if state is None else len(state["workers"])


def saved_plan(path: str | Path, size: int) -> CommPlan | None:
    """The plan that a snapshot was taken with, if it was taken by as many workers; None: make a new one."""
    with open_snapshot(path) as snapshot:
        state = None if snapshot.continuation is None else snapshot.continuation.get("team")
    return None if state is None or num_workers(state) != size else CommPlan.from_json(state["plan"])
