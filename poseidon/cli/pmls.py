"""PMLS-Caffe's flags of `train`, in our words.

    table_staleness=S             --staleness=S
    consistency_model=NAME        --consistency=…   SSP: ssp, SSPPush: ssp-push, SSPAggr: ssp-managed
    svb=false                     --scheme=server; true leaves the choice to the plan, as it is without
    client_bandwidth_mbps=N       --bandwidth-limit=Nmbit   in SSPAggr, where alone PMLS heeds it; the same of
    server_bandwidth_mbps=N                                 both, since ours is for each worker and direction. SSPAggr
                                                            without either is 40 there, and so here
    update_sort_policy=NAME       --row-order=…     in SSPAggr. RelativeMagnitude: importance, Random: random,
                                                    FIFO: fifo, FixedOrder: fixed
    row_oplog_type=…              --half-rows for fp16, in SSPAggr; of all others the shortest is taken by itself
    num_rows_per_table=N          needless: parameters are always dealt out over all servers
    stats_path=FILE               --stats=FILE.yaml
    bg_idle_milli, snapshot_clock, resume_clock     refused, unless they ask for what PMLS does without them

Each is told in a line when it is translated. `solver`, `snapshot`, `weights`, `gpu`, `net_outputs` and `hostfile` are
the same here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from poseidon.cli.command import FALSE_WORDS, TRUE_WORDS
from poseidon.errors import UsageError
from poseidon.spec import nearest

Tell = Callable[[str], None]

CONSISTENCY = {"SSP": "ssp", "SSPPush": "ssp-push", "SSPAggr": "ssp-managed"}
ORDERS = {"RelativeMagnitude": "importance", "Random": "random", "FIFO": "fifo", "FixedOrder": "fixed"}
# Bösen numbers them; names with or without spaces, dashes and capitals.
OPLOGS = {"dense": 0, "sparse": 1, "sparsevector": 2, "densefp16": 3}
NAMES = (
    "svb",
    "num_rows_per_table",
    "table_staleness",
    "consistency_model",
    "client_bandwidth_mbps",
    "server_bandwidth_mbps",
    "bg_idle_milli",
    "update_sort_policy",
    "row_oplog_type",
    "stats_path",
    "snapshot_clock",
    "resume_clock",
)
_IDLE_MILLI = "10"  # PMLS's own defaults
_BANDWIDTH_MBPS = 40


def translate(words: Sequence[str], tell: Tell) -> list[str]:
    """A command line of `train` with PMLS's flags in our words; `tell` gets a line for each."""
    kept, given = _split(words)
    if not given:
        return kept
    is_managed = _consistency(given) == "ssp-managed"
    added: list[str] = []
    for name, value in given.items():
        new, why = _translated(name, value, given, is_managed)
        tell(f"--{name}={value} is {new} here{why}" if new else f"--{name}={value} is left out{why}")
        if new and new not in added:
            added.append(new)
    if any(word.startswith("--consistency=") for word in added) and "table_staleness" not in given:
        added.append("--staleness=0")  # as PMLS
    spelled = [word.lstrip("-").replace("_", "-") for word in (*kept, *added) if word.startswith("-")]
    if is_managed and not any(word.startswith("bandwidth-limit") for word in spelled):
        added.append(f"--bandwidth-limit={_BANDWIDTH_MBPS}mbit")
        tell(f"--consistency_model=SSPAggr has a bandwidth of {_BANDWIDTH_MBPS} Mbit/s in PMLS: {added[-1]} here")
    return [*kept, *added]


def _split(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """What is not PMLS's, and its flags by name."""
    kept: list[str] = []
    given: dict[str, str] = {}
    waiting: str | None = None
    for word in words:
        name, equals, value = word.partition("=")
        spelled = name.lstrip("-").replace("-", "_")
        if waiting is not None:
            given[waiting], waiting = word, None
        elif not word.startswith("-"):
            kept.append(word)
        elif spelled == "nosvb":
            given["svb"] = "false"
        elif spelled not in NAMES:
            kept.append(word)
        elif equals or spelled == "svb":
            given[spelled] = value if equals else "true"
        else:
            waiting = spelled
    if waiting is not None:
        raise UsageError(f"--{waiting} needs a value, as in --{waiting}=1")
    return kept, given


def _translated(name: str, value: str, given: Mapping[str, str], is_managed: bool) -> tuple[str, str]:
    """Our flag ("": none is needed), and what else there is to say."""
    only_managed = "" if is_managed else ": PMLS heeds it with --consistency_model=SSPAggr only"
    if name == "table_staleness":
        return f"--staleness={_number(name, value)}", ""
    if name == "consistency_model":
        return f"--consistency={_consistency(given)}", ""
    if name == "svb":
        return _svb(value)
    if name == "num_rows_per_table":
        _number(name, value, least=1)
        return "", ": parameters are always dealt out over all servers"
    if name.endswith("_bandwidth_mbps"):
        return (f"--bandwidth-limit={_bandwidth(given)}mbit" if is_managed else ""), only_managed
    if name == "update_sort_policy":
        return (f"--row-order={_choice(name, value, ORDERS)}" if is_managed else ""), only_managed
    if name == "row_oplog_type":
        is_half = _oplog(value) == OPLOGS["densefp16"]
        if is_half:
            return ("--half-rows" if is_managed else ""), only_managed
        return "", ": updates travel in the shortest form, dense or sparse"
    if name == "stats_path":
        return f"--stats={value if Path(value).suffix.lower() in ('.yaml', '.yml', '.jsonl') else f'{value}.yaml'}", ""
    return "", _without_counterpart(name, value)


def _without_counterpart(name: str, value: str) -> str:
    """Raises, unless what is asked for is what happens anyhow."""
    if name == "bg_idle_milli":
        if value == _IDLE_MILLI:
            return ": threads here sleep until there is something to do"
        raise UsageError(
            f"--bg_idle_milli={value}: there is nothing to tune, threads here sleep until there is something to do; "
            "leave it out"
        )
    if _number(name, value, least=-1) <= 0:
        return ", as it asks for nothing"
    instead = "snapshot: N in the solver" if name == "snapshot_clock" else "--snapshot=FILE.solverstate"
    raise UsageError(
        f"--{name}={value}: snapshots here are Caffe's, whole and the same for any number of workers; use {instead}"
    )


def _svb(value: str) -> tuple[str, str]:
    if value.lower() in FALSE_WORDS:
        return "--scheme=server", ""
    if value.lower() in TRUE_WORDS:
        return "", ": the plan sends factors wherever they are shorter"
    raise UsageError(f"--svb is true or false, got {value!r}")


def _bandwidth(given: Mapping[str, str]) -> int:
    """The one limit that both flags give."""
    names = [name for name in ("client_bandwidth_mbps", "server_bandwidth_mbps") if name in given]
    limits = {_number(name, given[name], least=1) for name in names}
    if len(limits) > 1:
        raise UsageError(
            f"--client_bandwidth_mbps={given[names[0]]} and --server_bandwidth_mbps={given[names[1]]}: every worker "
            "serves too, and has one limit in each direction; give --bandwidth-limit=RATE instead of both"
        )
    return limits.pop()


def _consistency(given: Mapping[str, str]) -> str:
    return _choice("consistency_model", given.get("consistency_model", "SSPPush"), CONSISTENCY)


def _oplog(value: str) -> int:
    name = value.lower().replace(" ", "").replace("-", "").replace("_", "").replace("float16", "fp16")
    if name in OPLOGS:
        return OPLOGS[name]
    if value.isdecimal() and int(value) in OPLOGS.values():
        return int(value)
    raise UsageError(f"--row_oplog_type is one of dense, sparse, sparse_vector, dense_fp16 (0 … 3), got {value!r}")


def _choice(name: str, value: str, names: Mapping[str, str]) -> str:
    by_lower = {known.lower(): ours for known, ours in names.items()}
    if value.lower() not in by_lower:
        raise UsageError(f"--{name} is one of {', '.join(names)}, got {value!r}{nearest(value, names)}")
    return by_lower[value.lower()]


def _number(name: str, value: str, least: int = 0) -> int:
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise UsageError(f"--{name} is a whole number of at least {least}, got {value!r}")
    return number
