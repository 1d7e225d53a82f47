"""netlab: a cluster of N hosts on one machine, with real TCP over links of a set speed.

    python -m bench.netlab run -n 8 --rate 1gbit -- python train.py          CMD on every host; rank 0's output shown
    python -m bench.netlab run -n 4 --rate 1gbit,1gbit,1gbit,100mbit -- CMD  a straggler
    python -m bench.netlab up -n 4 --rate 200mbit --name lab                 a lab that stays
    python -m bench.netlab exec --name lab 2 -- CMD                          CMD on host 2
    python -m bench.netlab cut --name lab 2                                  host 2's cable pulled; `mend` plugs it in
    python -m bench.netlab down --name lab

Every host is a network namespace with a host name of its own (lab-h0, lab-h1, …); all are joined by a switch, a bridge
in one more namespace. Both directions of every link are shaped with tbf, so that a host sends and receives at RATE like
a NIC of that speed. Host i is 10.77.0.(i+1). Nothing outside the namespaces is touched, and `run` removes them however
it ends. Needs root and iproute2.

CMD sees RANK, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME=eth0 and,
unless they are set, OMP_NUM_THREADS=1 and TORCH_CPP_LOG_LEVEL=ERROR (torch warns about hosts without a DNS entry).
`run` returns the first non-zero exit code; the other hosts then get --grace seconds before they are killed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

NETWORK = "10.77.0"
RATE_UNITS = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}
MIN_BURST_BYTES = 128_000  # less starves tbf
QUEUE_TIME = "20ms"
# Loss-based like Linux's default, whatever the machine has for itself: BBR, made for long ways, gives the short bursts
# of an exchange half of the link. (Cubic would have to be allowed outside of the namespaces.)
CONGESTION_CONTROL = "reno"
PAYLOAD_FRACTION = 1448 / 1540  # of a full frame on an Ethernet: 117.5 MB/s at 1 Gbit/s
SHAPED_FRACTION = 1448 / 1514  # of what tbf counts, which is a frame without preamble, checksum and gap: 119.6 MB/s


@dataclass(frozen=True, slots=True)
class Links:
    """How the hosts are connected: rates are dealt out round-robin; "none" leaves a link as fast as it is."""

    rates: tuple[str, ...] = ("1gbit",)
    burst: str | None = None

    def shape_of(self, host: int) -> list[str] | None:
        """tc's words for the link of a host; None if it is not shaped."""
        rate = self.rates[host % len(self.rates)]
        if rate == "none":
            return None
        millisecond_bytes = rate_bps(rate) / 8 / 1000
        burst = self.burst or str(int(max(MIN_BURST_BYTES, millisecond_bytes)))
        return ["root", "tbf", "rate", rate, "burst", burst, "latency", QUEUE_TIME]


class Lab:
    """The hosts. As a context it builds them and takes them away again, whatever happens inside."""

    def __init__(self, name: str, num_hosts: int, links: Links | None = None, port: int = 29500) -> None:
        self.name, self.num_hosts, self.links, self.port = name, num_hosts, links or Links(), port

    def __enter__(self) -> Lab:
        require_root()
        self.down()
        try:
            self._build()
        except BaseException:  # Ctrl-C too: half a lab is taken away
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def switch(self) -> str:
        return f"{self.name}-sw"

    def host(self, index: int) -> str:
        return f"{self.name}-h{index}"

    def down(self) -> None:
        """Removes what there is of a lab of this name, with what still runs in it."""
        for space in (*existing_hosts(self.name), self.switch):
            for pid in _output("ip", "netns", "pids", space).split():
                _kill(int(pid))
            subprocess.run(["ip", "netns", "del", space], check=False, stderr=subprocess.DEVNULL)

    def cut(self, host: int) -> None:
        _do("ip", "-n", self.switch, "link", "set", f"p{host}", "down")

    def mend(self, host: int) -> None:
        _do("ip", "-n", self.switch, "link", "set", f"p{host}", "up")

    def slow(self, host: int, rate: str) -> None:
        """From now on a host's link has this rate, both ways."""
        shape = Links((rate,)).shape_of(0)
        assert shape is not None, "a slow link has a rate"
        _do("tc", "-n", self.host(host), "qdisc", "replace", "dev", "eth0", *shape)
        _do("tc", "-n", self.switch, "qdisc", "replace", "dev", f"p{host}", *shape)

    def sent_bytes(self) -> list[int]:
        """What each host has put on its link so far, headers included; only shaped links count."""
        return [self._sent_by(host) for host in range(self.num_hosts)]

    def start(self, host: int, command: Sequence[str], **popen: object) -> subprocess.Popen[bytes]:
        """CMD on one host, in a process group of its own."""
        words = ["ip", "netns", "exec", self.host(host), "unshare", "--uts", "sh", "-c"]
        words += ['hostname "$0" && exec "$@"', self.host(host), *command]
        environment = self.environment(host)
        return subprocess.Popen(words, env=environment, start_new_session=True, **popen)  # type: ignore[call-overload]

    def run(self, command: Sequence[str], *, grace_s: float = 60.0, show_all: bool = False) -> int:
        """CMD on every host; the first exit code that is not zero."""
        processes = []
        try:
            for host in range(self.num_hosts):
                output = None if show_all or host == 0 else subprocess.DEVNULL
                processes.append(self.start(host, command, stdout=output))
            return _wait_for_all(processes, grace_s)
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def environment(self, host: int) -> dict[str, str]:
        settings = {"RANK": host, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "WORLD_SIZE": self.num_hosts}
        settings |= {"MASTER_ADDR": f"{NETWORK}.1", "MASTER_PORT": self.port, "GLOO_SOCKET_IFNAME": "eth0"}
        defaults = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        return defaults | dict(os.environ) | {key: str(value) for key, value in settings.items()}

    def _build(self) -> None:
        _do("ip", "netns", "add", self.switch)
        # A switch has no firewall; -e: nor has every kernel one for bridges.
        _do("ip", "netns", "exec", self.switch, "sysctl", "-eqw", "net.bridge.bridge-nf-call-iptables=0")
        _do("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        _do("ip", "-n", self.switch, "link", "set", "br0", "up")
        for index in range(self.num_hosts):
            self._add_host(index)

    def _add_host(self, index: int) -> None:
        host, port = self.host(index), f"p{index}"
        _do("ip", "netns", "add", host)
        _do("ip", "netns", "exec", host, "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={CONGESTION_CONTROL}")
        _do("ip", "-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
        _do("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up")
        _do("ip", "-n", host, "addr", "add", f"{NETWORK}.{index + 1}/24", "dev", "eth0")
        _do("ip", "-n", host, "link", "set", "eth0", "up")
        _do("ip", "-n", host, "link", "set", "lo", "up")
        shape = self.links.shape_of(index)
        if shape is not None:
            _do("tc", "-n", host, "qdisc", "add", "dev", "eth0", *shape)
            _do("tc", "-n", self.switch, "qdisc", "add", "dev", port, *shape)

    def _sent_by(self, host: int) -> int:
        queues = json.loads(_output("tc", "-n", self.host(host), "-s", "-j", "qdisc", "show", "dev", "eth0"))
        return sum(queue.get("bytes", 0) for queue in queues if queue.get("kind") == "tbf")


def rate_bps(rate: str) -> float:
    """'200mbit' → 2e8."""
    for unit, scale in RATE_UNITS.items():
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * scale
    raise SystemExit(f"netlab: a rate looks like 1gbit, 200mbit or 500kbit, got {rate!r}")


def sent_bytes() -> int:
    """What this host has put on its link so far, as the link counts it."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def payload_seconds(num_bytes: float, rate: str, fraction: float = PAYLOAD_FRACTION) -> float:
    """The least time in which a link of this rate carries so many bytes of payload."""
    return num_bytes * 8 / (rate_bps(rate) * fraction)


def existing_hosts(name: str) -> list[str]:
    """The namespaces of a lab's hosts, whoever built it."""
    spaces = [line.split()[0] for line in _output("ip", "netns", "list").splitlines() if line]
    return [space for space in spaces if space.removeprefix(f"{name}-h").isdigit()]


def require_root() -> None:
    if os.geteuid() != 0:
        raise SystemExit("netlab: network namespaces need root; run it with sudo")
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"netlab: {', '.join(missing)} not found; install iproute2 and util-linux")


def _wait_for_all(processes: list[subprocess.Popen[bytes]], grace_s: float) -> int:
    code, deadline_s = 0, float("inf")
    while any(process.poll() is None for process in processes):
        failed = [process.returncode for process in processes if process.poll() not in (None, 0)]
        if failed and code == 0:
            code, deadline_s = failed[0], time.monotonic() + grace_s
        if time.monotonic() > deadline_s:
            print(f"netlab: hosts still running {grace_s:g} s after the first failure are killed", file=sys.stderr)
            return code
        time.sleep(0.05)
    return code or next((process.returncode for process in processes if process.returncode), 0)


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"netlab: `{' '.join(words)}` failed: {done.stderr.strip()}")


def _output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="netlab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["run", "up", "down", "exec", "cut", "mend"])
    parser.add_argument("host", nargs="?", type=int, help="for exec, cut and mend")
    parser.add_argument("-n", "--num-hosts", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="tc's rate, or a comma list dealt round-robin; none: unshaped")
    parser.add_argument("--burst", help="tbf's burst; default 1 ms of traffic, at least 128 kB")
    parser.add_argument("--name", help="default: lab, and one of its own for run")
    parser.add_argument("--port", type=int, default=29500)
    parser.add_argument("--grace", type=float, default=60.0)
    parser.add_argument("--show-all", action="store_true", help="show every host's output, not only host 0's")
    options = parser.parse_intermixed_args(words[:at])
    if options.action in ("run", "exec") and not words[at + 1 :]:
        parser.error(f"{options.action} needs -- COMMAND")
    if options.action in ("exec", "cut", "mend") and options.host is None:
        parser.error(f"{options.action} needs the number of a host")
    return options, words[at + 1 :]


def main(words: list[str]) -> int:
    options, command = _parse(words)
    require_root()
    # A terminated lab still takes its namespaces away: SystemExit passes through every `finally`.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    name = options.name or (f"nl{os.getpid()}" if options.action == "run" else "lab")
    lab = Lab(name, options.num_hosts, Links(tuple(options.rate.split(",")), options.burst), options.port)
    if options.action == "run":
        with lab:
            return lab.run(command, grace_s=options.grace, show_all=options.show_all)
    if options.action == "up":
        lab.__enter__()
    elif options.action == "down":
        lab.down()
    elif options.action == "exec":
        lab.num_hosts = len(existing_hosts(name))
        return lab.start(options.host, command).wait()
    elif options.action == "cut":
        lab.cut(options.host)
    else:
        lab.mend(options.host)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
