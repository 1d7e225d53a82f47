"""What `poseidon simulate` does once its flags are read: profiles the net, plans, plays, tells."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import poseidon
from poseidon.cli.planning import compute_basis, profile_solver
from poseidon.errors import UsageError
from poseidon.plan import CommPlan, NetProfile, PlanRequest, make_plan
from poseidon.plan.table import megabytes
from poseidon.simulate import Machines, Played, Teller, Told, play, write_record
from poseidon.spec import caffe_pb2


@dataclass(frozen=True, slots=True)
class Subject:
    """What is trained: its profile; where compute times come from; the net's text; notes on data; the solver's text."""

    profile: NetProfile
    basis: str = "as the profile says"
    net: str = ""
    notes: tuple[str, ...] = ()
    configuration: dict[str, str] = field(default_factory=dict)


def profile_of(param: caffe_pb2.SolverParameter, found: argparse.Namespace) -> Subject:
    """The net that a solver trains, as shapes only."""
    trained = profile_solver(param, found, measure=False)
    configuration = {descriptor.name: str(value) for descriptor, value in param.ListFields()}
    basis = compute_basis(found, measure=False)
    return Subject(trained.profile, basis, trained.text, tuple(trained.notes), configuration)


def show_simulation(
    subject: Subject, machines: Machines, plan: CommPlan | PlanRequest, found: argparse.Namespace
) -> None:
    """Plays and prints: text, or JSON."""
    if found.save_profile:
        _write(found.save_profile, subject.profile.to_json() + "\n")
    if isinstance(plan, PlanRequest):
        plan = make_plan(subject.profile, machines.cluster, plan)
    teller = Teller(plan, subject.profile, machines)
    played = play(plan, subject.profile, machines, found.iterations, teller.listener if found.record else _nobody)
    if found.record:
        versions = {"poseidon": poseidon.__version__, "torch": torch.__version__, "python": platform.python_version()}
        options = {name: str(value) for name, value in vars(found).items() if value not in (None, "", False)}
        told = Told(tuple(sys.argv), subject.configuration | options, subject.net, versions=versions)
        write_record(found.record, teller, played, told)
    if found.json:
        print(json.dumps(result(subject, machines, plan, played)))
    else:
        print("\n".join(lines(subject, machines, plan, played)))
        if found.record:
            print(f"record    {found.record}: `poseidon report {found.record}` makes a page of it")


def _nobody(rank: int) -> None:
    """Nobody listens."""


def result(subject: Subject, machines: Machines, plan: CommPlan, played: Played) -> dict[str, Any]:
    """The figures; seconds and bytes are per iteration."""
    return {
        "workers": machines.cluster.num_workers,
        "nodes": machines.cluster.num_nodes,
        "iterations": played.num_iterations,
        "iteration_s": played.steady_s,
        "compute_s": subject.profile.compute_s,
        "wait_s": played.waited_s,
        "speedup": speedup(subject, machines, played),
        "bytes_sent": max(played.bytes_sent) / played.num_iterations,
        "plan_iteration_s": plan.iteration_s,
        "schemes": {unit.params[0]: unit.scheme.value for unit in plan.units},
        "by_worker": [list(worker) for worker in played.iteration_s],
        "one_for_all": played.is_one_for_all,
    }


def speedup(subject: Subject, machines: Machines, played: Played) -> float:
    """How many times as many samples a second as one worker alone that computes without a stop."""
    return machines.cluster.num_workers * subject.profile.compute_s / played.steady_s if played.steady_s else 1.0


def lines(subject: Subject, machines: Machines, plan: CommPlan, played: Played) -> list[str]:
    """The figures for people."""
    num_workers = machines.cluster.num_workers
    steady_s = played.steady_s
    sent = max(played.bytes_sent) / played.num_iterations
    told = [f"cluster   {machines.describe()}", f"compute   {subject.basis}", *subject.notes]
    counts: dict[str, int] = {}
    for unit in plan.units:
        counts[unit.scheme.name] = counts.get(unit.scheme.name, 0) + 1
    schemes = ", ".join(f"{number} by {name}" for name, number in counts.items())
    told += [
        f"plan      {len(plan.units)} units ({schemes}) in {len(plan.order)} sends, "
        f"expected {plan.iteration_s * 1e3:.1f} ms",
        f"played    {played.num_iterations} iterations"
        + (", all workers alike" if played.is_one_for_all else f", {num_workers} workers one by one"),
        "",
        f"iteration {steady_s * 1e3:.1f} ms = {(steady_s - played.waited_s) * 1e3:.1f} ms computing and updating"
        f" + {played.waited_s * 1e3:.1f} ms waiting",
        f"network   {megabytes(sent)} MB sent per node and iteration, "
        f"{8 * sent / machines.cluster.bandwidth_bps / steady_s * 100 if steady_s else 0:.0f}% of its link",
        f"speed-up  {speedup(subject, machines, played):.2f} of {num_workers} workers, over one that never waits",
    ]
    if not played.is_one_for_all:
        told.append(_slowest(played))
    return told


def _slowest(played: Played) -> str:
    """Who computes most: the one the others wait for."""
    busy = [
        sum(worker[1:] or worker) - sum(waits[1:] or waits)
        for worker, waits in zip(played.iteration_s, played.wait_s, strict=True)
    ]
    rank = max(range(len(busy)), key=busy.__getitem__)
    number = max(played.num_iterations - 1, 1)
    return f"slowest   worker {rank} computes {busy[rank] / number * 1e3:.1f} ms an iteration"


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"--save-profile={path}: cannot be written: {problem.strerror}") from None
