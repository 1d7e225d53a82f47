"""Cluster: the machines a plan is made for, as measured or as told; and the way people write such figures.

Every node has one network interface, full duplex, of `bandwidth_bps`. A message costs

    α = latency_s     until it arrives; messages on their way at the same time share it
    o = overhead_s    during which its host can start no other: what stays when many are on their way
    bytes / β         on the wire

(LogGP's L, o and G.) Every send besides takes `send_s` of the worker's own time: threads wake up. All-reduces run in
C++; what the other schemes do, they do in Python: their messages have an α and an o of their own, and each of their
collectives takes `collective_s` more.

A measured bandwidth is one of payload. One that people write ("1gbit") is the link's: frames, IP and TCP headers take
6% of it, see PAYLOAD_SHARE.

An infinite rate means that the work costs nothing, or is already counted in the layers' seconds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from poseidon.errors import PlanError, UsageError
from poseidon.plan.codec import decode_json, encode_json

PAYLOAD_SHARE = 0.94  # 1448 bytes of payload in 1538 on the wire; measured: 117.5 MB/s of a 1 Gbit/s link
DEFAULT_LATENCY_S = 1e-4
DEFAULT_SEND_S = 2e-5
DEFAULT_LOCAL_BPS = 80e9  # 10 GB/s: what one host's memory gives several processes


@dataclass(frozen=True, slots=True)
class Cluster:
    """P workers on nodes, and what they and their links can do.

    node_workers    how many workers each node has
    bandwidth_bps   payload of one node's interface, each way, in bits per second
    local_bps       memory of one node, in bits per second
    own_latency_s, own_overhead_s    α and o where Python has a hand in every message; None: as of an all-reduce
    gather_share    part of the bandwidth that handing blocks around gets, where an all-reduce gets all of it
    push_share      the same for pieces sent to all peers at once
    flops           matrix products on a worker's device, in FLOP/s
    update_bps      parameters brought up to date on a worker's device, in bits of parameters per second
    """

    node_workers: tuple[int, ...]
    bandwidth_bps: float
    latency_s: float = DEFAULT_LATENCY_S
    overhead_s: float = 0.0
    own_latency_s: float | None = None
    own_overhead_s: float | None = None
    send_s: float = DEFAULT_SEND_S
    collective_s: float = 0.0
    local_bps: float = DEFAULT_LOCAL_BPS
    gather_share: float = 1.0
    push_share: float = 1.0
    flops: float = math.inf
    update_bps: float = math.inf

    def __post_init__(self) -> None:
        if not self.node_workers or min(self.node_workers) < 1:
            raise PlanError(
                f"a cluster needs at least one node, each with at least one worker, got {self.node_workers}"
            )
        for name in ("bandwidth_bps", "local_bps", "flops", "update_bps"):
            if not getattr(self, name) > 0:
                raise PlanError(f"a cluster's {name} must be above 0, got {getattr(self, name)}")
        for name in ("gather_share", "push_share"):
            if not 0 < getattr(self, name) <= 1:
                raise PlanError(f"a cluster's {name} must be above 0 and at most 1, got {getattr(self, name)}")
        for name in ("latency_s", "overhead_s", "own_latency_s", "own_overhead_s", "send_s", "collective_s"):
            seconds = getattr(self, name)
            if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
                raise PlanError(f"a cluster's {name} must be seconds, 0 or more, got {seconds}")

    def message(self, *, is_own: bool) -> tuple[float, float]:
        """α and o of a message: of one of our own collectives, or of an all-reduce."""
        if not is_own:
            return self.latency_s, self.overhead_s
        return (
            self.latency_s if self.own_latency_s is None else self.own_latency_s,
            self.overhead_s if self.own_overhead_s is None else self.own_overhead_s,
        )

    @property
    def num_workers(self) -> int:
        return sum(self.node_workers)

    @property
    def num_nodes(self) -> int:
        return len(self.node_workers)

    def describe(self) -> str:
        """One line for people."""
        nodes = _nodes_text(self.node_workers)
        rate = rate_text(self.bandwidth_bps)
        return f"{nodes}, {rate} of payload per node, {self.latency_s * 1e3:.3g} ms per message"

    def to_json(self) -> str:
        return encode_json(self)

    @classmethod
    def from_json(cls, text: str) -> Cluster:
        return decode_json(cls, text)


def _nodes_text(node_workers: tuple[int, ...]) -> str:
    num_nodes, num_workers = len(node_workers), sum(node_workers)
    if num_nodes == num_workers:
        return f"{num_nodes} node{'s' if num_nodes > 1 else ''} with one worker each"
    counts = sorted(set(node_workers))
    each = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{num_workers} workers on {num_nodes} node{'s' if num_nodes > 1 else ''} ({each} each)"


def rate_text(bps: float) -> str:
    """Bits per second for people: `940 Mbit/s`."""
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bps >= size:
            return f"{bps / size:.4g} {unit}"
    return f"{bps:.4g} bit/s"


# -- figures as people write them -------------------------------------------------------------------------------------
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d{1,3}))?"
_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_bandwidth(text: str) -> float:
    """A link's rate, like `1gbit`, `200mbit` or `2.5Gbit/s`, in bits per second."""
    rate = _measured(text, _BITS, r"(?:/s)?")
    if rate is None or rate == 0:
        raise UsageError(
            f"a bandwidth is a number above 0 with one of {', '.join(_BITS)}, like 1gbit or 200mbit, got {text!r}"
        )
    return rate


def parse_seconds(text: str) -> float:
    """A time, like `0.1ms` or `50us`."""
    seconds = _measured(text, _SECONDS, "")
    if seconds is None:
        raise UsageError(f"a time is a number with one of ns, us, ms, s, like 0.1ms, got {text!r}")
    return seconds


def _measured(text: str, units: dict[str, float], ending: str) -> float | None:
    match = re.fullmatch(rf"\s*{_NUMBER}\s*({'|'.join(units)}){ending}\s*", text.lower(), re.ASCII)
    if match is None:
        return None
    mantissa, exponent, unit = match.groups()
    value = float(f"{mantissa}e{exponent or 0}") * units[unit]
    return value if math.isfinite(value) else None


def parse_nodes(text: str) -> tuple[int, ...]:
    """Workers on each node: `2x4` is two nodes of four, `4,4,2` three nodes, `2x4,1x2` the same three."""
    counts: list[int] = []
    for part in text.lower().split(","):
        match = re.fullmatch(r"\s*(?:([1-9]\d{0,5})\s*x\s*)?([1-9]\d{0,5})\s*", part, re.ASCII)
        if match is None:
            raise UsageError(
                f"nodes are written NODESxWORKERS, like 2x4, or as a list of workers per node, like 4,4,2; got {text!r}"
            )
        counts += [int(match[2])] * int(match[1] or 1)
    return tuple(counts)
