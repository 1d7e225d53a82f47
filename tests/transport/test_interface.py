"""The interface on the way to the master, checked against what the kernel's own tables say."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from poseidon.errors import TransportError
from poseidon.transport import interface
from poseidon.transport.interface import addresses, choose_interface


@pytest.mark.parametrize("master", ["127.0.0.1", "localhost"])
def test_a_local_master_means_loopback(master):
    chosen = choose_interface(master, is_multi_host=False)
    assert chosen.name == "lo"
    assert chosen.address in ("127.0.0.1", "::1")
    assert str(chosen) == f"lo ({chosen.address}), the way to {master} stays on this host"


def test_loopback_is_refused_when_there_are_other_hosts():
    with pytest.raises(
        TransportError, match=r"leads over the loopback interface lo \(127.0.0.1\).*set the master address"
    ):
        choose_interface("127.0.0.1", is_multi_host=True)
    with pytest.raises(TransportError, match="loopback"):
        choose_interface("10.0.0.1", is_multi_host=True, wanted="lo")


def test_addresses_are_those_of_the_kernel():
    """/proc/net/fib_trie lists every IPv4 address of this host as a local one; IPv6 in if_inet6."""
    known = addresses()
    assert known["127.0.0.1"] == "lo"
    names = {name for _, name in socket.if_nameindex()}
    assert set(known.values()) <= names
    table = Path("/proc/net/fib_trie").read_text()
    for address in known:
        if ":" not in address:
            assert f"-- {address}\n" in table


def test_a_master_elsewhere_is_reached_by_the_address_the_kernel_would_use(monkeypatch):
    """Every interface of this host with an IPv4 address, taken for the master's: the way there starts on it."""
    for address, name in addresses().items():
        if ":" in address or name == "lo":
            continue
        chosen = choose_interface(address, is_multi_host=True)
        assert (chosen.name, chosen.address) == (name, address)
        assert chosen.why == f"on the way to the master {address}"
    monkeypatch.setattr(interface, "addresses", lambda: {"10.9.8.7": "eth7"})
    monkeypatch.setattr(interface.socket, "socket", lambda *arguments: FakeSocket())
    assert str(choose_interface("10.9.0.1", is_multi_host=True)) == "eth7 (10.9.8.7), on the way to the master 10.9.0.1"


class FakeSocket:
    """As a kernel with a route to 10.9.0.0/16 would answer."""

    def __enter__(self):
        return self

    def __exit__(self, *arguments):
        return None

    def connect(self, target):
        assert target[0] == "10.9.0.1"

    def getsockname(self):
        return ("10.9.8.7", 12345)


def test_a_name_is_taken_as_given():
    chosen = choose_interface("10.0.0.1", is_multi_host=False, wanted="lo")
    assert (chosen.name, chosen.address, chosen.why) == ("lo", "127.0.0.1", "named by the user")
    with pytest.raises(
        TransportError, match=r"there is no network interface 'ib0' with an address on .*; there are .*lo"
    ):
        choose_interface("10.0.0.1", is_multi_host=False, wanted="ib0")


def test_a_master_nobody_knows():
    with pytest.raises(
        TransportError, match=r"no way from .* to the master 'no-such-host.invalid'.*check the master address"
    ):
        choose_interface("no-such-host.invalid", is_multi_host=True)
