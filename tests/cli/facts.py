"""What a log says, apart from when: the lines that the command and the solver write, with their numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

# glog writes month and day, newer versions the year as well.
_PREFIX = re.compile(r"^[IWEF](?:\d{4}|\d{8}) \d\d:\d\d:\d\d\.\d{6} +\d+ (\S+)\] (.*)$")
_PLACES = re.compile(r"(caffe|solver|sgd_solver)\.cpp:\d+")
# Never the same twice: how fast it was, and the loss of a net with fresh random weights.
_PASSING = (
    (re.compile(r"\([^()]*iter/s, [^()]*s/(\d+) iters\)"), r"(pace of \1)"),
    (re.compile(r"[-+0-9.e]+ ms\."), "some ms."),
    (re.compile(r"Initial loss: \S+"), "Initial loss"),
)
_NUMBER = re.compile(r"(?<![\w.#])-?\d+\.?\d*(?:e[-+]\d+)?(?![\w.])")


@dataclass(frozen=True, slots=True)
class Fact:
    """One line: where in Caffe it is written, its text with the numbers taken out, and the numbers."""

    place: str
    text: str
    numbers: tuple[float, ...]


def facts_of(log: str) -> list[Fact]:
    facts = []
    for line in log.splitlines():
        match = _PREFIX.match(line)
        if match is None or not _PLACES.fullmatch(match[1]):
            continue
        text = match[2]
        for pattern, replacement in _PASSING:
            text = pattern.sub(replacement, text)
        facts.append(Fact(match[1], _NUMBER.sub("#", text), tuple(map(float, _NUMBER.findall(text)))))
    return facts
