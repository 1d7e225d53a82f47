"""Description: machines as people write them, on the command line or in a JSON file with the same words.

    {
      "nodes": "16x4",                                       or "workers": 64
      "bandwidth": "10gbit", "latency": "0.1ms",
      "switch": "4:2.5",                                     4 nodes on a switch, 2.5 times oversubscribed
      "jitter": 0.05, "straggler": "3:2.0,7:1.5", "seed": 1,
      "overhead": "10us", "own-latency": "50us", "own-overhead": "20us",
      "handling": "20gbit", "memory": "80gbit", "flops": 6e12, "update": "480gbit"
    }

Only nodes (or workers) and bandwidth must be there. Bandwidth is the link's, of which frames and headers take 6%.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from poseidon.errors import UsageError
from poseidon.plan import PAYLOAD_SHARE, Cluster, parse_bandwidth, parse_nodes, parse_seconds
from poseidon.plan.cluster import DEFAULT_LATENCY_S, DEFAULT_LOCAL_BPS
from poseidon.simulate.machines import Machines, Straggler

WORDS = (
    "workers",
    "nodes",
    "bandwidth",
    "latency",
    "overhead",
    "own-latency",
    "own-overhead",
    "switch",
    "handling",
    "memory",
    "flops",
    "update",
    "jitter",
    "straggler",
    "seed",
)


def read_description(path: str) -> dict[str, str]:
    """The words of a file and what they say."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as problem:
        raise UsageError(f"{path}: a description of a cluster cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        raise UsageError(
            f"{path}: expected a description of a cluster as JSON, got text that is none: {problem}"
        ) from None
    if not isinstance(found, dict):
        raise UsageError(f'{path}: expected a JSON object like {{"workers": 64, "bandwidth": "10gbit"}}')
    said = {}
    for word, value in found.items():
        if word.replace("_", "-") not in WORDS:
            raise UsageError(f"{path}: there is no {word!r} in a description of a cluster; words: {', '.join(WORDS)}")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UsageError(f"{path}: {word}: expected text or a number, got {json.dumps(value)[:60]}")
        said[word.replace("_", "-")] = str(value)
    return said


def machines_of(said: Mapping[str, str]) -> Machines:
    """The machines that these words describe."""
    unknown = set(said) - set(WORDS)
    assert not unknown, f"words of a description are checked where they come from, got {unknown}"
    if "bandwidth" not in said:
        raise UsageError("--bandwidth is missing: give the rate of a node's link, as in --bandwidth=10gbit")
    nodes_per_switch, oversubscription = _switch(said["switch"]) if "switch" in said else (0, 1.0)
    cluster = Cluster(
        node_workers=_node_workers(said),
        bandwidth_bps=parse_bandwidth(said["bandwidth"]) * PAYLOAD_SHARE,
        latency_s=_said(said, "latency", parse_seconds, DEFAULT_LATENCY_S),
        overhead_s=_said(said, "overhead", parse_seconds, 0.0),
        own_latency_s=_said(said, "own-latency", parse_seconds, None),
        own_overhead_s=_said(said, "own-overhead", parse_seconds, None),
        local_bps=_said(said, "memory", parse_bandwidth, DEFAULT_LOCAL_BPS),
        flops=_said(said, "flops", _number, math.inf),
        update_bps=_said(said, "update", parse_bandwidth, math.inf),
    )
    return Machines(
        cluster,
        nodes_per_switch=nodes_per_switch,
        oversubscription=oversubscription,
        handling_bps=_said(said, "handling", parse_bandwidth, math.inf),
        jitter=_said(said, "jitter", _number, 0.0),
        stragglers=_said(said, "straggler", _stragglers, ()),
        seed=_said(said, "seed", _whole, 0),
    )


def _said(said: Mapping[str, str], word: str, parse: Callable[[str], Any], otherwise: Any) -> Any:
    return parse(said[word]) if word in said else otherwise


def _node_workers(said: Mapping[str, str]) -> tuple[int, ...]:
    workers = _said(said, "workers", _whole, None)
    if "nodes" in said:
        node_workers = parse_nodes(said["nodes"])
        if workers not in (None, sum(node_workers)):
            raise UsageError(
                f"nodes {said['nodes']} have {sum(node_workers)} workers, but {workers} are asked for: leave one of "
                "them out"
            )
        return node_workers
    if workers is None:
        raise UsageError("--workers is missing: give the number of workers, as in --workers=64, or --nodes=16x4")
    if not 1 <= workers <= 100_000:
        raise UsageError(f"from 1 to 100000 workers can be simulated, got {workers}")
    return (1,) * workers


def _switch(text: str) -> tuple[int, float]:
    """`16:4` as 16 nodes on a switch, 4 times oversubscribed."""
    nodes, colon, times = text.partition(":")
    if not nodes.strip().isascii() or not nodes.strip().isdigit() or int(nodes) < 1:
        raise UsageError(
            f"a switch is written NODES:OVERSUBSCRIPTION, like 16:4 for 16 nodes that share a fourth of their "
            f"bandwidth upwards, got {text!r}"
        )
    return int(nodes), _number(times) if colon else 1.0


def _stragglers(text: str) -> tuple[Straggler, ...]:
    """`3:2.0,5:1.5` as worker 3, twice as slow, and worker 5."""
    found = []
    for part in text.split(","):
        rank, colon, factor = part.partition(":")
        if not (colon and rank.strip().isascii() and rank.strip().isdigit()):
            raise UsageError(f"a straggler is written WORKER:TIMES, like 3:2.0, several with commas, got {text!r}")
        found.append(Straggler(int(rank), _number(factor)))
    return tuple(found)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"expected a number, got {text!r}")
    return number


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"expected a whole number, 0 or more, got {text!r}")
    return int(text)
