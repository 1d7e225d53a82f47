"""status: `poseidon status [--hosts LIST | --hostfile F]`: what the running jobs of this host, or of others, do."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from poseidon.cli.cluster import entry_of, host_flags, hosts_asked
from poseidon.cli.command import Command, Flags
from poseidon.cli.workers import job_environ
from poseidon.run.fleet import Fleet
from poseidon.run.questions import ask
from poseidon.run.status import read_statuses, status_folder

STALE_S = 10.0
_SLOW_SHARE = 0.1


def declare(flags: Flags) -> None:
    host_flags(flags)
    flags.flag("json", action="store_true", help="all of it as JSON")


def run(found: argparse.Namespace) -> int:
    hosts = hosts_asked(found)
    problems: dict[str, str] = {}
    if hosts is None:
        jobs = read_statuses(status_folder(os.environ))
    else:
        jobs = []
        entry = replace(entry_of(found, (), job_environ(os.environ)), folder="/")  # nothing there is needed
        with Fleet(hosts, entry, is_strict=False) as fleet:
            problems = fleet.gather()
            for site, answer in zip(fleet.ready, ask(fleet, [(s, "status", {}) for s in fleet.ready]), strict=True):
                if isinstance(answer, str):
                    problems[site.host.name] = answer
                else:
                    jobs += answer["jobs"]
    jobs = [job for job in jobs if not job.get("is_launcher")]
    if found.json:
        print(json.dumps({"jobs": jobs, "problems": problems}, indent=1))
        return 1 if problems else 0
    for job in jobs:
        print("\n".join(job_lines(job, time.time())))
    for name, problem in problems.items():
        print(f"host {name} {problem}")
    if not jobs:
        print("no job runs" + ("" if hosts is not None else " whose rank 0 is on this host; --hosts asks other hosts"))
    return 1 if problems else 0


def job_lines(job: dict[str, Any], now: float) -> Iterator[str]:
    """A job, and a line for each of its workers."""
    workers: list[dict[str, Any]] = job.get("workers", [])
    clock = min((worker["clock"] for worker in workers), default=0)
    loss = workers[0]["figures"].get("loss", 0.0) if workers else 0.0
    seconds = max((worker["figures"].get("iteration_s", 0.0) for worker in workers), default=0.0)
    speed = f", {1 / seconds:.3g} it/s" if seconds > 0 else ""
    age = f" (silent for {now - job['written']:.0f} s)" if now - job["written"] > STALE_S else ""
    yield f"job {job.get('job') or job['pid']}: iteration {clock} of {job.get('max_iter')}, loss {loss:.4g}{speed}{age}"
    yield f"{'rank':>6}  {'host':20} {'pid':>8} {'clock':>8} {'waits':>6}  state"
    for worker in workers:
        state = f"waits for {worker['waits_for']}" if worker["waits_for"] else "computes"
        share = f"{worker['figures'].get('wait_share', 0.0):.0%}"
        yield (f"{worker['rank']:>6}  {worker['host']:20} {worker['pid']:>8} {worker['clock']:>8} {share:>6}  {state}")
    slow = slowest(workers)
    if slow is not None:
        yield f"slow: rank {slow['rank']} on host {slow['host']}: the others wait for it"


def slowest(workers: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The worker that hardly waits while the others do; None if they all wait alike."""
    shares = [(worker["figures"].get("wait_share", 0.0), worker) for worker in workers]
    if len(shares) < 2:
        return None
    least = min(shares, key=lambda entry: entry[0])
    others = [share for share, worker in shares if worker is not least[1]]
    return least[1] if min(others) > least[0] + _SLOW_SHARE else None


COMMAND = Command(declare, run)
