"""Signals as requests to a running solver: Ctrl-C and hang-up stop it, ask for a snapshot, or do nothing. SIGUSR1, from
a launcher or a scheduler that needs the machine, asks it to save its work and make room."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from poseidon.solver import Action


class SignalRequests:
    """Remembers what the signals since the last look ask for; a stop outranks a snapshot.

    `is_stopping` stays true from the first request to stop on, for whoever wants to show it.
    """

    def __init__(self) -> None:
        self.is_stopping = False
        self._snapshot = False
        self._stop = False
        self._yield = False

    def request(self, action: Action) -> None:
        self._snapshot = self._snapshot or action is Action.SNAPSHOT
        self._stop = self._stop or action is Action.STOP
        self._yield = self._yield or action is Action.YIELD
        self.is_stopping = self.is_stopping or self._stop or self._yield

    def __call__(self) -> Action:
        if self._yield:
            self._yield = False
            return Action.YIELD
        if self._stop:
            self._stop = False
            return Action.STOP
        if self._snapshot:
            self._snapshot = False
            return Action.SNAPSHOT
        return Action.NONE


@contextmanager
def signal_requests(sigint_effect: str, sighup_effect: str) -> Iterator[SignalRequests]:
    """While inside, signals become requests; afterwards they do what they did before. Effects: stop, snapshot, none."""
    requests = SignalRequests()
    effects = {signal.SIGINT: Action[sigint_effect.upper()], signal.SIGHUP: Action[sighup_effect.upper()]}
    effects[signal.SIGUSR1] = Action.YIELD

    def handle(number: int, _: FrameType | None) -> None:
        requests.request(effects[signal.Signals(number)])

    before = {number: signal.signal(number, handle) for number in effects}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
