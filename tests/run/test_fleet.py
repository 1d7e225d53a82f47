"""Fleet: hosts that were reached are left again, also when another one cannot be."""

from __future__ import annotations

import pytest

from poseidon.run import fleet
from poseidon.run.hosts import Host
from poseidon.run.site import Entry


def test_what_was_reached_is_left_when_the_next_host_fails(monkeypatch):
    left = []

    class Site:
        def __init__(self, host: Host, entry: Entry) -> None:
            if host.name == "third":
                raise KeyboardInterrupt
            self.host = host

        def streams(self) -> list[int]:
            return []

        def hang_up(self) -> None:
            """There is nothing to hang up."""

        def leave(self, seconds: float) -> None:
            left.append(self.host.name)

    monkeypatch.setattr(fleet, "Site", Site)
    monkeypatch.setattr(fleet, "check_ssh", lambda ssh: None)
    hosts = [Host(name, 1) for name in ("first", "second", "third", "fourth")]
    with pytest.raises(KeyboardInterrupt), fleet.Fleet(hosts, Entry(("ssh",), "/", {}, ())):
        raise AssertionError("nobody comes in here")
    assert left == ["first", "second"]
