"""Questions to all sites of a fleet at once, and their answers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any

from poseidon.run.fleet import Fleet
from poseidon.run.messages import Message
from poseidon.run.site import Site

ANSWER_S = 60.0

_numbers = itertools.count()


def ask(fleet: Fleet, asked: Iterable[tuple[Site, str, dict[str, Any]]]) -> list[dict[str, Any] | str]:
    """The facts that each site answers with, in order; a text where there is a problem instead."""
    pending: list[tuple[Site, int]] = []
    for site, kind, facts in asked:
        number = next(_numbers)
        site.say(kind, number=number, **facts)
        pending.append((site, number))
    deadline_s = time.monotonic() + ANSWER_S
    while any(site.is_open and number not in site.answers for site, number in pending):
        if time.monotonic() > deadline_s:
            break
        fleet.pump(_ignore, 0.05)
    return [_answer(site, number) for site, number in pending]


def _answer(site: Site, number: int) -> dict[str, Any] | str:
    message: Message | None = site.answers.pop(number, None)
    if message is None:
        return site.problem or f"did not answer within {ANSWER_S:g} s"
    if message["kind"] == "problem":
        return str(message.get("text"))
    facts = message.get("facts")
    return facts if isinstance(facts, dict) else "answers in a way that is not understood"


def _ignore(site: Site, message: Message) -> None:
    """Only answers count here, and sites keep those."""
