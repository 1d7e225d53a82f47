"""Interface: which network interface of this host carries the traffic of a job.

The one on the route to the master: a UDP socket "connected" there (nothing is sent) tells which address the kernel
would send from; the interface that has this address is the one. Loopback cannot reach other hosts and is refused when
there are any. A name given by the user is taken as it is.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from poseidon.errors import TransportError

SIOCGIFADDR = 0x8915
IF_INET6 = Path("/proc/net/if_inet6")


@dataclass(frozen=True, slots=True)
class Interface:
    """`why` continues the sentence "eth0 (10.0.0.5), …"."""

    name: str
    address: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} ({self.address}), {self.why}"


def choose_interface(master: str, *, is_multi_host: bool, wanted: str | None = None) -> Interface:
    """The interface towards `master` (a name or an address), or the one named `wanted`."""
    chosen = _named(wanted) if wanted else _towards(master)
    if is_multi_host and ip_address(chosen.address).is_loopback:
        raise TransportError(
            f"the job has several hosts, but the way to its master {master!r} leads over the loopback interface "
            f"{chosen.name} ({chosen.address}), which only reaches this host; set the master address to one that "
            "the other hosts can reach, or name an interface"
        )
    return chosen


def addresses() -> dict[str, str]:
    """Interface names of this host by address, IPv4 and IPv6."""
    found = {}
    for _, name in socket.if_nameindex():
        address = _ipv4_of(name)
        if address is not None:
            found[address] = name
    if IF_INET6.exists():
        for line in IF_INET6.read_text().splitlines():
            digits, _, _, _, _, name = line.split()
            found[socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))] = name
    return found


def _named(name: str) -> Interface:
    known = addresses()
    # IPv4 first: `addresses` lists it first.
    for address, interface in known.items():
        if interface == name:
            return Interface(name, address, "named by the user")
    raise TransportError(
        f"there is no network interface {name!r} with an address on {socket.gethostname()}; there are "
        f"{', '.join(sorted(set(known.values())))}"
    )


def _towards(master: str) -> Interface:
    try:
        family, _, _, _, target = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            address = probe.getsockname()[0].partition("%")[0]
    except OSError as error:
        raise TransportError(
            f"no way from {socket.gethostname()} to the master {master!r}: {error}; check the master address"
        ) from error
    if ip_address(address).is_loopback:
        return Interface("lo", address, f"the way to {master} stays on this host")
    name = addresses().get(address)
    if name is None:
        raise TransportError(f"address {address}, on the way to the master {master!r}, belongs to no interface")
    return Interface(name, address, f"on the way to the master {master}")


def _ipv4_of(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None  # no IPv4 address
    return socket.inet_ntoa(answer[20:24])
