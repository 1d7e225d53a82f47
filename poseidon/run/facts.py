"""Facts that all workers of a job must agree on, compared before training and after a snapshot is restored.

A job compares before it does anything else together: where workers were started differently they would soon make
different calls, and nothing they then told each other would make sense.

    versions    at once
    settings    before anything is built or sent
    nets        when they are built, before they are measured
    plan, parameters, iteration    before training

Digests are exchanged, of fixed size; only for the first fact that differs do the workers show each other what they
have, and everybody raises the same error: what differs, where, and on which ranks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import torch

import poseidon
from poseidon.errors import WorkersDiffer
from poseidon.plan import CommPlan, Override
from poseidon.run.profile import param_names
from poseidon.run.replicas import checksum, groups_of, workers_text
from poseidon.run.roundtable import Roundtable
from poseidon.solver import Solver
from poseidon.spec import caffe_pb2, format_message

# What a worker may have to itself: its device, and where on its host things are. Nets are compared by their text.
_OWN_SETTINGS = ("device_id", "net", "train_net", "test_net", "snapshot_prefix", "weights")
_SAME_SOLVER = "start all workers with the same solver and net"
SAME_FILES = "let all workers start from the same files: weights, snapshot"
_MOST_SHOWN = 120  # characters of a line


@dataclass(frozen=True, slots=True)
class Fact:
    """Something all must have alike, as text for people; lines are compared one by one."""

    name: str
    text: str
    advice: str


def check_facts(facts: Sequence[Fact], table: Roundtable) -> None:
    """Raises WorkersDiffer on all workers if any differ. All give facts of the same names, in the same order."""
    digests = b"".join(hashlib.sha256(fact.text.encode()).digest() for fact in facts)
    own = torch.frombuffer(bytearray(digests), dtype=torch.uint8).view(len(facts), -1)
    by_rank = table.gather(own)
    for index, fact in enumerate(facts):
        if (by_rank[:, index] != by_rank[0, index]).any():
            raise _difference(fact, table)


def _difference(fact: Fact, table: Roundtable) -> WorkersDiffer:
    texts = table.gather_texts(fact.text)
    lines = [text.splitlines() for text in texts]
    longest = max(map(len, lines))
    number = next(i for i in range(longest + 1) if len({_line(rank_lines, i) for rank_lines in lines}) > 1)
    shown = _shortened([_line(rank_lines, number) for rank_lines in lines])
    where = f", line {number + 1}" if longest > 1 else ""
    values = "; ".join(f"{shown[group[0]]} on {workers_text(group, table)}" for group in groups_of(shown))
    others = tuple(rank for rank, text in enumerate(texts) if text != texts[0])
    return WorkersDiffer(f"workers differ in the {fact.name}{where}: {values}; {fact.advice}", others)


def _line(lines: Sequence[str], number: int) -> str:
    return lines[number].strip() if number < len(lines) else "nothing"


def _shortened(lines: Sequence[str]) -> list[str]:
    """Long lines cut to the part in which they differ."""
    alike = next(
        (i for i, letters in enumerate(zip(*lines, strict=False)) if len(set(letters)) > 1), min(map(len, lines))
    )
    start = max(alike - _MOST_SHOWN // 2, 0) if max(map(len, lines)) > _MOST_SHOWN else 0
    ends = [(line, start + _MOST_SHOWN) for line in lines]
    return [("…" if start else "") + line[start:end] + ("…" if len(line) > end else "") for line, end in ends]


# -- what there is to compare ---------------------------------------------------------------------------------------
def version_facts() -> list[Fact]:
    """Compared before all others: another version may have other facts."""
    install = "install the same version on all hosts"
    return [
        Fact("version of Poseidon", poseidon.__version__, install),
        Fact("version of PyTorch", torch.__version__, install),
    ]


def setting_facts(param: caffe_pb2.SolverParameter, dtype: torch.dtype, choices: str) -> list[Fact]:
    """What workers are started with; `choices` are those of the options that concern all."""
    return [
        Fact("options", choices, "start all workers with the same options"),
        Fact("dtype", str(dtype), "start all workers with the same dtype"),
        Fact("solver", _settings(param), _SAME_SOLVER),
    ]


def net_facts(solver: Solver) -> list[Fact]:
    """The nets that workers have built."""
    tests = "\n".join(format_message(net.source.net) for net in solver.test_nets)
    return [
        Fact("train net", format_message(solver.net.source.net), _SAME_SOLVER),
        Fact("test nets", tests, _SAME_SOLVER),
    ]


def plan_fact(plan: CommPlan) -> Fact:
    text = json.dumps(json.loads(plan.to_json()), indent=1)
    return Fact("communication plan", text, "give all workers the plan that one of them has made")


def lines_of(options: Any) -> str:
    """The fields of a dataclass of options, one in a line, for comparison."""
    return "\n".join(f"{entry.name}: {_told(getattr(options, entry.name))}" for entry in fields(options))


def _told(value: Any) -> str:
    """As people write it."""
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_told, value)) or "none"
    if isinstance(value, Override):
        return f"{value.pattern}={value.scheme.value}"
    return str(value.value if isinstance(value, Enum) else value)


def replica_facts(solver: Solver) -> list[Fact]:
    """What makes replicas: the iteration they stand at and the values of all parameters."""
    sums = (
        f"{name} {checksum([e.value]):#x}"
        for name, e in zip(param_names(solver.net), solver.net.learnable, strict=True)
    )
    return [
        Fact("iteration", str(solver.iter), SAME_FILES),
        Fact("parameters (checksums)", "\n".join(sums), SAME_FILES),
    ]


def _settings(param: caffe_pb2.SolverParameter) -> str:
    common = caffe_pb2.SolverParameter()
    common.CopyFrom(param)
    for name in (*_OWN_SETTINGS, "net_param", "train_net_param", "test_net_param"):
        common.ClearField(name)
    return format_message(common)
