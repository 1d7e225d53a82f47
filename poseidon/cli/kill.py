"""kill: `poseidon kill [--hosts LIST | --hostfile F] [--job NAME]`: ends what jobs left running, here or elsewhere.

Launchers that run on a host go with it, so that nothing starts again. Hosts may have another version of Poseidon.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from poseidon.cli.cluster import entry_of, host_flags, hosts_asked
from poseidon.cli.command import Command, Flags
from poseidon.run.fleet import Fleet
from poseidon.run.leftovers import kill_jobs
from poseidon.run.questions import ask
from poseidon.run.rendezvous import JOB


def declare(flags: Flags) -> None:
    host_flags(flags)
    flags.flag("job", default="", metavar="NAME", help="only this job's, as `poseidon status` names it (all of yours)")


def run(found: argparse.Namespace) -> int:
    hosts = hosts_asked(found)
    if hosts is None:
        _show("this host", kill_jobs(found.job))
        return 0
    environ = {name: text for name, text in os.environ.items() if name != JOB}
    entry = replace(entry_of(found, (), environ), folder="/")  # nothing there is needed
    with Fleet(hosts, entry, is_strict=False) as fleet:
        problems = fleet.gather()
        ready = fleet.ready
        for site, answer in zip(ready, ask(fleet, [(site, "kill", {"job": found.job}) for site in ready]), strict=True):
            if isinstance(answer, str):
                problems[site.host.name] = answer
            else:
                _show(f"host {site.host.name}", answer["ended"])
    for name, problem in problems.items():
        print(f"host {name} {problem}")
    return 1 if problems else 0


def _show(where: str, ended: list[dict[str, object]]) -> None:
    told = ", ".join(f"pid {entry['pid']} of job {entry['job']}" for entry in ended)
    print(f"{where}: {'ended ' + told if told else 'nothing was left'}")


COMMAND = Command(declare, run)
