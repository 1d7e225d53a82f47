"""Doctor: what is wrong with the hosts of a job, found before it runs, and what to do about it.

    reach       ssh, Poseidon at the same path, folder                       each host
    alike       versions, package, the job's files                           against the host that asks
    host        devices, disk (free space, speed), names of all hosts, port, interface
    clock       against the host that asks; half a round trip is allowed for
    links       latency and bandwidth of every ordered pair, while every host sends to one other and hears from one

A link is slow if most of the faster half of all links are more than `SLOW` times as fast: among three hosts a slow one
has four of the six links. Clocks, disks and names matter to people and schedulers more than to exchanges: they are
problems all the same when they are far off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from poseidon.run.fleet import Fleet
from poseidon.run.inventory import differences, take_inventory
from poseidon.run.questions import ask
from poseidon.run.site import Site

SLOW = 3.0
USUAL = 0.75  # of all links, this part is no faster than what is usual
MOST_SKEW_S = 2.0
LEAST_FREE_BYTES = 256 << 20
LEAST_DISK_BPS = 8 * 5e6
NUM_CLOCKS = 3


@dataclass(frozen=True, slots=True)
class Link:
    """From one host to another; a `problem` instead of figures if there is no way."""

    source: str
    target: str
    latency_s: float = 0.0
    bps: float = 0.0
    problem: str = ""


@dataclass(slots=True)
class Diagnosis:
    """`problems` say what to do about them; `facts` by host."""

    problems: list[str] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        links = [
            {"from": link.source, "to": link.target, "latency_s": link.latency_s, "bps": link.bps} | _told(link)
            for link in self.links
        ]
        return {"problems": self.problems, "hosts": self.facts, "links": links}


def _told(link: Link) -> dict[str, str]:
    return {"problem": link.problem} if link.problem else {}


@dataclass(frozen=True, slots=True)
class Request:
    """What is looked at: the files of a job (missing ones too), where it writes, and the port at which it meets."""

    files: tuple[str, ...] = ()
    folder: str = "."
    port: int | None = None


def diagnose(fleet: Fleet, request: Request) -> Diagnosis:
    """Looks at everything; needs some seconds, and a second more for each host."""
    found = Diagnosis()
    for name, problem in fleet.gather().items():
        found.problems.append(f"host {name} {problem}")
    here = take_inventory(request.files)
    for path, mark in here.files.items():
        if mark == "missing":
            found.problems.append(f"{path} is missing on this host; check the path in the solver or net")
    sites = fleet.ready
    for site in sites:
        assert site.inventory is not None
        found.facts[site.host.name] = {"address": site.address, **site.inventory.to_json()}
        found.problems += [f"host {site.host.name} {text}" for text in differences(here, site.inventory)]
    _examine(fleet, sites, request, found)
    _compare_clocks(fleet, sites, found)
    if len(sites) > 1:
        found.links = list(_measure(fleet, sites))
        found.problems += slow_links(found.links)
    return found


def _examine(fleet: Fleet, sites: Sequence[Site], request: Request, found: Diagnosis) -> None:
    names = [host.address for host in fleet.hosts]
    asked = []
    for place, site in enumerate(sites):
        port = site.host.port or (request.port if place == 0 else None)
        facts = {"names": names, "folder": request.folder, "port": port, "address": site.address}
        facts |= {"own_name": site.host.address, "is_alone": len(fleet.hosts) == 1}
        asked.append((site, "examine", facts))
    for (site, _, facts), answer in zip(asked, ask(fleet, asked), strict=True):
        host = site.host.name
        if isinstance(answer, str):
            found.problems.append(f"host {host} could not be examined: {answer}")
            continue
        found.facts.setdefault(host, {}).update(answer)
        found.problems += [f"host {host} {text}" for text in host_problems(answer, facts)]


def host_problems(facts: dict[str, Any], asked: dict[str, Any]) -> Iterator[str]:
    """What is wrong with one host, in words that follow its name."""
    if facts["devices"]["torch_problem"]:
        yield f"cannot load PyTorch: {facts['devices']['torch_problem']}; reinstall it there"
    for name, address in facts["names"].items():
        if address.startswith("!"):
            yield f"does not resolve the name {name}: {address[1:]}; add it to DNS or /etc/hosts there"
        elif _is_loopback(address) and not _is_loopback(name) and name not in (asked["own_name"], "localhost"):
            yield f"takes the name {name} of another host for itself ({address}); correct /etc/hosts or DNS there"
    yield from interface_problems(facts["interfaces"], asked)
    if facts["port"]:
        yield f"cannot listen on port {asked['port']}: {facts['port']}; end what uses it, or choose another port"
    disk = facts["disk"]
    if disk.get("missing"):
        yield f"has no folder for snapshots: {disk['problem']}; make it there, or set another snapshot_prefix"
    elif disk["problem"]:
        yield f"cannot write where snapshots go: {disk['problem']}; free space, or set another snapshot_prefix"
    elif disk["free_bytes"] < LEAST_FREE_BYTES:
        yield f"has only {disk['free_bytes'] / 1e6:.0f} MB free where snapshots go; free some"
    elif disk["bps"] < LEAST_DISK_BPS:
        yield f"writes only {disk['bps'] / 8e6:.1f} MB/s where snapshots go; use another disk, or fewer snapshots"


def interface_problems(interfaces: dict[str, str], asked: dict[str, Any]) -> Iterator[str]:
    """Workers listen at the address by which their host is reached: it must be the host's own, and lead there."""
    address = asked["address"]
    if asked["is_alone"]:
        return
    if _is_loopback(address):
        yield f"is to be reached at {address}, on the loopback interface, which only itself reaches; name another one"
    elif address not in interfaces:
        known = ", ".join(f"{name} {own}" for own, name in interfaces.items() if not _is_loopback(own)) or "none"
        yield (
            f"is reached at {address}, which is on none of its interfaces ({known}), so that workers cannot listen "
            "there; name an interface with --interface, or the host by an address of its own"
        )


def _is_loopback(text: str) -> bool:
    try:
        return ip_address(text).is_loopback
    except ValueError:  # a name
        return False


def _compare_clocks(fleet: Fleet, sites: Sequence[Site], found: Diagnosis) -> None:
    for site in sites:
        offsets = []
        for _ in range(NUM_CLOCKS):
            began = time.time()
            (answer,) = ask(fleet, [(site, "clock", {})])
            ended = time.time()
            if isinstance(answer, dict):
                offsets.append((ended - began, float(answer["now"]) - (began + ended) / 2))
        if offsets:
            round_trip_s, offset_s = min(offsets)
            found.facts.setdefault(site.host.name, {})["clock_offset_s"] = offset_s
            if abs(offset_s) > MOST_SKEW_S + round_trip_s:
                way = "ahead of" if offset_s > 0 else "behind"
                found.problems.append(
                    f"host {site.host.name} has a clock {abs(offset_s):.1f} s {way} this host's; let both take their "
                    "time from the same server (chrony, systemd-timesyncd)"
                )


# -- links ------------------------------------------------------------------------------------------------------------
def _measure(fleet: Fleet, sites: Sequence[Site]) -> Iterator[Link]:
    """Every ordered pair, in rounds: in round k every host sends to the k-th one after it."""
    served = ask(fleet, [(site, "serve", {"address": site.address}) for site in sites])
    ports = [answer["port"] if isinstance(answer, dict) else None for answer in served]
    for shift in range(1, len(sites)):
        pairs = [(site, (place + shift) % len(sites)) for place, site in enumerate(sites)]
        asked = [(site, "measure", {"address": sites[to].address, "port": ports[to] or 1}) for site, to in pairs]
        for (site, to), answer in zip(pairs, ask(fleet, asked), strict=True):
            names = (site.host.name, sites[to].host.name)
            if isinstance(answer, str):
                yield Link(*names, problem=answer)
            else:
                yield Link(*names, latency_s=float(answer["latency_s"]), bps=float(answer["bps"]))


def slow_links(links: Sequence[Link]) -> list[str]:
    """Links that do not work or are far slower than the rest; a host all of whose links are slow is named once."""
    found = [
        f"host {link.source} cannot reach host {link.target}: {link.problem}; check firewall and interface"
        for link in links
        if link.problem
    ]
    speeds = {(link.source, link.target): link.bps for link in links if not link.problem}
    if len(speeds) < 2:
        return found
    usual = sorted(speeds.values())[math.ceil(USUAL * (len(speeds) - 1))]
    slow = {pair for pair, bps in speeds.items() if bps * SLOW < usual}
    for host in dict.fromkeys(name for pair in speeds for name in pair):
        own = {pair for pair in speeds if host in pair}
        if len(own) > 2 and own <= slow:
            fastest = max(speeds[pair] for pair in own)
            found.append(
                f"host {host} has slow links: at most {rate(fastest)}, where {rate(usual)} is usual; check its cable, "
                "port and interface"
            )
            slow -= own
    for source, target in sorted(slow):
        found.append(
            f"the link from host {source} to host {target} is slow: {rate(speeds[source, target])}, where "
            f"{rate(usual)} is usual; check cables and switch between them"
        )
    return found


def rate(bps: float) -> str:
    return f"{bps / 1e9:.3g} Gbit/s" if bps >= 1e9 else f"{bps / 1e6:.3g} Mbit/s"
