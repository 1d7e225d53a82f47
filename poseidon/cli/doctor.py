"""doctor: `poseidon doctor [--hosts LIST | --hostfile F] [--solver S]`: what is wrong with the hosts, and what to do.

Exit code 0 if nothing is.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poseidon.cli.cluster import entry_of, host_flags, hosts_asked, job_paths
from poseidon.cli.command import Command, Flags, positive_number
from poseidon.cli.terminal import busy
from poseidon.cli.workers import job_environ
from poseidon.run.doctor import Diagnosis, Request, diagnose, rate
from poseidon.run.fleet import Fleet
from poseidon.run.hosts import Host
from poseidon.spec import read_solver


def declare(flags: Flags) -> None:
    host_flags(flags)
    flags.flag("solver", metavar="FILE", help="look at the files and the folder of this solver's job too")
    flags.flag("interface", metavar="NAME", help="network interface (the one that leads to the other hosts)")
    flags.flag("port", type=positive_number, metavar="N", help="port on the first host at which workers are to meet")
    flags.flag("json", action="store_true", help="all findings as JSON")


def run(found: argparse.Namespace) -> int:
    hosts = hosts_asked(found) or [Host("localhost")]
    files: tuple[str, ...] = ()
    folder = "."
    if found.solver:
        param = read_solver(found.solver)
        files = tuple(job_paths(param, found))
        folder = str(Path(f"{param.snapshot_prefix}_").parent)
    entry = entry_of(found, files, job_environ(os.environ), silence_s=60.0)
    looking = f"looking at {len(hosts)} host{'s' if len(hosts) > 1 else ''} and what is between them"
    with busy(looking), Fleet(hosts, entry, is_strict=False) as fleet:
        diagnosis = diagnose(fleet, Request(files, folder, found.port))
    if found.json:
        print(json.dumps(diagnosis.to_json(), indent=1))
    else:
        for line in (*_host_lines(diagnosis), *_link_lines(diagnosis), *_verdict(diagnosis)):
            print(line)
    return 1 if diagnosis.problems else 0


def _host_lines(found: Diagnosis) -> Iterator[str]:
    for host, facts in found.facts.items():
        devices, disk = facts.get("devices"), facts.get("disk")
        yield f"host {host}  address {facts.get('address')}"
        python, torch, poseidon = (facts.get(name) for name in ("python", "torch", "poseidon"))
        yield f"  versions   Poseidon {poseidon}, PyTorch {torch}, Python {python}"
        if devices:
            gpus = ", ".join(devices["gpus"]) or "no GPU"
            yield f"  devices    {devices['cores']} cores, {devices['memory_bytes'] / 1e9:.1f} GB, {gpus}"
        if facts.get("interfaces"):
            yield f"  networks   {', '.join(_networks(facts))}"
        if disk and not disk["problem"]:
            yield f"  disk       {disk['free_bytes'] / 1e9:.1f} GB free, {disk['bps'] / 8e6:.0f} MB/s written"
        if "clock_offset_s" in facts:
            yield f"  clock      {facts['clock_offset_s'] * 1e3:+.0f} ms"


def _networks(facts: dict[str, Any]) -> Iterator[str]:
    """Interfaces with their addresses; the one of the job is marked."""
    for address, name in facts["interfaces"].items():
        mark = " (the job's)" if address == facts.get("address") else ""
        yield f"{name} {address}{mark}"


def _link_lines(found: Diagnosis) -> Iterator[str]:
    """Two matrices: bandwidth and latency, from the row's host to the column's."""
    if not found.links:
        return
    by_pair = {(link.source, link.target): link for link in found.links}
    hosts = list(dict.fromkeys(link.source for link in found.links))
    width = max(12, *map(len, hosts)) + 1
    heading = "".join(f"{host:>{width}}" for host in hosts)
    for title, text in (
        ("bandwidth", lambda link: rate(link.bps)),
        ("latency", lambda link: f"{link.latency_s * 1e6:.0f} µs"),
    ):
        yield ""
        yield f"{title + ', from':<{width}}{heading}"
        for source in hosts:
            cells = []
            for target in hosts:
                link = by_pair.get((source, target))
                cells.append("-" if link is None else "no way" if link.problem else text(link))
            yield f"{source:<{width}}" + "".join(f"{cell:>{width}}" for cell in cells)
    working = [link for link in found.links if not link.problem]
    if working:
        slowest = min(working, key=lambda link: link.bps)
        yield f"slowest link: from {slowest.source} to {slowest.target}, {rate(slowest.bps)}"


def _verdict(found: Diagnosis) -> Iterator[str]:
    yield ""
    if not found.problems:
        yield "nothing is wrong"
        return
    yield f"{len(found.problems)} problem{'s' if len(found.problems) > 1 else ''}:"
    for problem in found.problems:
        yield f"  {problem}"


COMMAND = Command(declare, run)
