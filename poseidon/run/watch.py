"""Watch: where this worker stands, kept up to date by what solver and scheduler tell, at the cost of a few assignments.

Others see it with every sign of life (`transport/vitals.py`): who is lost is named with its clock and last unit,
`poseidon status` shows it, and a report of a stuck exchange (`stuck.py`) is made of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from poseidon.comm.events import CommEvent, SendApplied, SendReduced, SendStarted, UnitReady, WaitEnded, WaitStarted
from poseidon.plan import CommPlan, Scheme
from poseidon.solver import Action, events
from poseidon.solver.team import Team
from poseidon.transport.vitals import Vitals

LOSS_S = 1.0  # between two looks at the loss, which wait for the device
# Figures that tell whether a worker moves (`standstill.py`).
TRAINING_S = "training_s"  # processor time of the thread that trains; there once training begins
SAVING = "saving"  # 1: a snapshot may be being written
_SMOOTH = 0.9


class Watch:
    """Tell it about events; ask it for vitals from any thread. `now` tells the time in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._plan: CommPlan | None = None
        self._last_send: dict[int, int] = {}  # by unit: its last place in the order of one iteration
        self._num_ready: dict[int, int] = {}  # by unit: in how many iterations its gradients were there
        self._num_sends = 0  # of one iteration
        self._clock = self._num_sent = self._num_met = self._sent_bytes = 0
        self._unit = self._waits_for = ""
        self._num_needed = 0
        self._waiting_since_s = self._loss_at_s = self._done_at_s = now()
        self._wait_s = self._waited_before_s = self._wait_share = self._iteration_s = self._loss = 0.0
        self._shown_loss: torch.Tensor | None = None
        self._training_clock: int | None = None
        self._is_saving = False

    def follow(self, plan: CommPlan) -> None:
        """From now on exchanges go by this plan, on the thread that calls; what was sent before counts no more."""
        self._training_clock = time.pthread_getcpuclockid(threading.get_ident())
        still = {unit.index for unit in plan.units if unit.scheme is Scheme.LOCAL}
        order = [send for send in plan.order if send.unit not in still]
        self._plan, self._num_sent, self._num_sends = plan, 0, len(order)
        self._last_send = {send.unit: place for place, send in enumerate(order)}
        self._num_ready = {}

    # -- what happens -----------------------------------------------------------------------------------------------
    def hear_comm(self, event: CommEvent) -> None:
        if isinstance(event, SendStarted):
            self._num_sent += 1
            self._unit = self._name(event.unit)
        elif isinstance(event, SendReduced | SendApplied):
            self._sent_bytes += event.sent_bytes
        elif isinstance(event, UnitReady):
            self._num_ready[event.unit] = self._num_ready.get(event.unit, 0) + 1
        elif isinstance(event, WaitStarted):
            self._waiting_since_s = self._now()
            rounds_before = max(self._num_ready.get(event.unit, 0) - 1, 0)
            self._num_needed = rounds_before * self._num_sends + self._last_send.get(event.unit, 0) + 1
            self._waits_for = self._name(event.unit)
        elif isinstance(event, WaitEnded):
            self._wait_s += self._now() - self._waiting_since_s
            self._waits_for = ""

    def hear_solver(self, event: events.Event) -> None:
        if isinstance(event, events.Restored):
            self._clock = event.iteration
            self._done_at_s = self._now()
        elif isinstance(event, events.SnapshotStarted | events.SnapshotWritten | events.SnapshotFailed):
            self._is_saving = isinstance(event, events.SnapshotStarted)
        elif isinstance(event, events.IterationDone):
            self._clock = event.iteration + 1
            self._shown_loss = event.smoothed_loss
            self._measure()

    def _measure(self) -> None:
        now_s = self._now()
        took_s, self._done_at_s = now_s - self._done_at_s, now_s
        self._iteration_s = took_s if not self._iteration_s else _SMOOTH * self._iteration_s + (1 - _SMOOTH) * took_s
        waited_s, self._waited_before_s = self._wait_s - self._waited_before_s, self._wait_s
        self._wait_share = _SMOOTH * self._wait_share + (1 - _SMOOTH) * (waited_s / took_s if took_s > 0 else 0.0)
        if now_s - self._loss_at_s > LOSS_S and self._shown_loss is not None:
            self._loss_at_s = now_s
            self._loss = float(self._shown_loss)

    def _name(self, unit: int) -> str:
        if self._plan is None:
            return f"unit {unit}"
        found = next((entry for entry in self._plan.units if entry.index == unit), None)
        return f"unit {unit}" if found is None else f"{found.scheme.name} {found.params[0]}"

    @contextlib.contextmanager
    def meeting(self, what: str) -> Iterator[None]:
        """Around something for which all workers come together; they do so in the same order."""
        self._num_met += 1
        self._waiting_since_s, self._num_needed, self._waits_for = self._now(), 0, what
        try:
            yield
        finally:
            self._waits_for = ""
            self._wait_s += self._now() - self._waiting_since_s

    # -- what is told -----------------------------------------------------------------------------------------------
    def vitals(self) -> Vitals:
        waits_for = self._waits_for
        return Vitals(
            clock=self._clock,
            unit=self._unit,
            num_sent=self._num_sent,
            waits_for=waits_for,
            num_needed=self._num_needed if waits_for else 0,
            waited_s=self._now() - self._waiting_since_s if waits_for else 0.0,
            figures=self._motion()
            | {"loss": self._loss, "iteration_s": self._iteration_s, "wait_share": self._wait_share}
            | {"met": float(self._num_met), "sent_bytes": float(self._sent_bytes)},
        )

    def _motion(self) -> dict[str, float]:
        found = {SAVING: float(self._is_saving)}
        if self._training_clock is not None:
            with contextlib.suppress(OSError):  # the thread has ended
                found[TRAINING_S] = time.clock_gettime(self._training_clock)
        return found


class WatchedTeam:
    """A team whose meetings are watched."""

    def __init__(self, team: Team, watch: Watch) -> None:
        self.rank = team.rank
        self.deal, self.restore = team.deal, team.restore
        self._team, self._watch = team, watch

    def mean(self, values: Sequence[Tensor]) -> list[Tensor]:
        with self._watch.meeting("the mean of what is shown"):
            return self._team.mean(values)

    def agree(self, request: Action, *, testing: bool) -> Action:
        with self._watch.meeting("an agreement on when to stop"):
            return self._team.agree(request, testing=testing)

    def level(self) -> None:
        with self._watch.meeting("statistics of BatchNorm"):
            self._team.level()

    def meet(self) -> None:
        with self._watch.meeting("a meeting of all"):
            self._team.meet()

    def state(self) -> Any:
        with self._watch.meeting("the state of all workers"):
            return self._team.state()
