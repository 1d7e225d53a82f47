"""Fleet: the sites of a job together. One loop hears all of them; who returns is connected again."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from poseidon.errors import UsageError
from poseidon.run.hosts import Host
from poseidon.run.inventory import differences, take_inventory
from poseidon.run.messages import Message
from poseidon.run.site import Entry, Site, SiteState, check_ssh, is_here

LEAVE_S = 3.0
RETRY_S = 5.0

Hear = Callable[[Site, Message], None]


class Fleet:
    """As a context it connects to all hosts, and leaves nothing running there when it ends. `is_strict`: a host whose
    versions or files differ from this one's is lost."""

    def __init__(self, hosts: Sequence[Host], entry: Entry, *, is_strict: bool = True) -> None:
        self.hosts, self._entry, self._is_strict = tuple(hosts), entry, is_strict
        if not all(map(is_here, hosts)):
            check_ssh(entry.ssh)
        self._inventory = take_inventory(entry.files)
        self._selector = selectors.DefaultSelector()
        self.sites: list[Site] = []
        self._tried_s = time.monotonic()

    def __enter__(self) -> Fleet:
        try:
            for host in self.hosts:
                self.sites.append(self._connect(host))
        except BaseException:  # Ctrl-C too: nothing is left running on the hosts that were reached
            self._leave()
            raise
        return self

    def __exit__(self, *ended: object) -> None:
        self._leave()

    @property
    def ready(self) -> list[Site]:
        return [site for site in self.sites if site.is_ready]

    def gather(self, is_over: Callable[[], bool] = lambda: False) -> dict[str, str]:
        """Waits until every host has answered or failed to, or it is over for other reasons; what is wrong, by host."""
        while any(site.state is SiteState.CONNECTING for site in self.sites) and not is_over():
            self.pump(lambda site, message: None)
        return {site.host.name: site.problem for site in self.sites if not site.is_ready}

    def pump(self, hear: Hear, wait_s: float = 0.1) -> None:
        """Hears what the sites say within a time."""
        for key, _ in self._selector.select(wait_s):
            site: Site = key.data
            for message in site.hear(key.fd):
                hear(site, message)
            if site.is_ready:
                self._check(site)
            if not site.is_open:
                self._forget(site)  # at once: its descriptors are closed, and somebody else may get them
        for site in self.sites:
            site.look_after()
            if not site.is_open:
                self._forget(site)

    def retry(self) -> None:
        """Tries to connect to lost hosts again, from time to time; `pump` finds out whether that works."""
        if time.monotonic() - self._tried_s > RETRY_S:
            self._tried_s = time.monotonic()
            self.sites = [site if site.is_open else self._connect(site.host) for site in self.sites]

    def _connect(self, host: Host) -> Site:
        others = [other.address for other in self.hosts if other.name != host.name and not is_here(other)]
        site = Site(host, replace(self._entry, towards=others[0] if others else ""))
        for stream in site.streams():
            self._selector.register(stream, selectors.EVENT_READ, site)
        return site

    def _check(self, site: Site) -> None:
        """A host that differs from this one is as good as none."""
        if self._is_strict and site.inventory is not None:
            found = differences(self._inventory, site.inventory)
            site.inventory = None  # checked
            if found:
                site.lose("; ".join(found))

    def _forget(self, site: Site) -> None:
        for key in [key for key in self._selector.get_map().values() if key.data is site]:
            self._selector.unregister(key.fd)

    def _leave(self) -> None:
        for site in self.sites:
            site.hang_up()
        deadline_s = time.monotonic() + LEAVE_S
        for site in self.sites:
            with contextlib.suppress(OSError):
                site.leave(max(deadline_s - time.monotonic(), 0.01))
        self._selector.close()


def refuse(problems: dict[str, str]) -> None:
    """Raises with all that is wrong, if anything is."""
    if problems:
        told = "; ".join(f"host {name} {problem}" for name, problem in problems.items())
        raise UsageError(f"{told} (`poseidon doctor` looks at all of it)")
