"""Machines that are not equally fast, and a network that is short: what staleness, balance and managed mode gain.

    sudo python -m bench.staleness [--parts throughput,samples,balance,managed] [--runs 3] [--from FOLDER]
    python -m bench.staleness --draw        the pictures of docs/performance.md, from docs/performance/staleness.json

    throughput   4 hosts × 1 Gbit/s; in every iteration one worker, drawn at random, takes 3 times as long: iterations
                 per second with s = 3 over those with s = 0                                              at least 1.5
    samples      the same pauses, LeNet on MNIST: samples until 98.5 % with s = 3 over those with s = 0   at most 1.2
    balance      one host is 3 times slower for good: --balance over equal batches                        at least 1.8
    managed      a quarter of the bytes that s = 0 sends per clock, in managed mode: clocks until the loss falls to
                 TARGET, the most important rows first over rows at random; medians of 5 seeds            at most 0.9

Hosts are emulated (`bench/netlab.py`), and so is how long a worker computes (`staleness_worker.py`): SAMPLE_S for each
sample. `managed` counts clocks and bytes, not seconds (`staleness_managed.py`). Contenders take turns; every run is in
the JSON. LeNet's digits are read from --data; they are made there from --from, the folder of MNIST's four files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.convergence import SUBJECTS, has_data
from bench.staleness_managed import bytes_per_clock, first_below, losses_of
from bench.staleness_page import draw_all
from bench.staleness_worker import ACCURACY, BATCH, HOSTS, Task
from poseidon.comm.stale.managed import RowOrder

ROOT = Path(__file__).resolve().parent.parent
RAW = ROOT / "docs" / "performance" / "staleness.json"
SAMPLE_S = 0.1 / BATCH
TARGET = 0.4  # of the loss, smoothed
LIMITS = {"throughput": (1.5, None), "samples": (None, 1.2), "balance": (1.8, None), "managed": (None, 0.9)}

# Of a part: `ratio`, `figures` by contender, and `runs`, all that was measured.
Found = dict[str, Any]


def in_lab(task: Task, rate: str) -> dict[str, Any]:
    """What rank 0 found."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", "bench.netlab", "run", "-n", str(HOSTS), "--rate", rate, "--name", "stale"]
        command += ["--", sys.executable, "-m", "bench.staleness_worker", json.dumps(asdict(task)), str(out)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        if done.returncode or not out.exists():
            raise SystemExit(f"{task} failed (exit code {done.returncode})")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def task_of(options: argparse.Namespace, **changes: Any) -> Task:
    return replace(Task(options.iterations, SAMPLE_S, str(options.data.resolve())), **changes)


# -- parts ------------------------------------------------------------------------------------------------------------
def throughput(options: argparse.Namespace) -> Found:
    return _rates(options, {f"s = {clocks}": task_of(options, staleness=clocks, pauses=True) for clocks in (0, 3)})


def balance(options: argparse.Namespace) -> Found:
    slow = task_of(options, slow_host=HOSTS - 1)
    return _rates(options, {"equal": slow, "balanced": replace(slow, balance=True)})


def _rates(options: argparse.Namespace, tasks: dict[str, Task]) -> Found:
    """Iterations per second of two, in turns; the ratio is the median of the turns'."""
    runs = []
    for turn in range(options.runs):
        runs.append({name: in_lab(replace(task, seed=1 + turn), options.rate)["per_s"] for name, task in tasks.items()})
        print(f"# {runs[-1]}", file=sys.stderr, flush=True)
    plain, better = tasks
    ratio = statistics.median(run[better] / run[plain] for run in runs)
    figures = {f"{name}, per s": statistics.median(run[name] for run in runs) for name in tasks}
    return {"ratio": ratio, "figures": figures, "runs": runs}


def samples(options: argparse.Namespace) -> Found:
    """Samples until LeNet is accurate enough, medians over seeds."""
    names = {0: "s = 0", 3: "s = 3"}
    runs: list[dict[str, Any]] = []
    for seed in range(1, 1 + options.runs):
        for clocks, name in names.items():
            changes = {"iterations": options.most, "sample_s": options.sample_s, "until_accurate": True}
            task = task_of(options, staleness=clocks, pauses=True, seed=seed, **changes)
            runs.append({"who": name, "seed": seed, **in_lab(task, options.rate)})
            print(f"# seed {seed}, {name}: iteration {runs[-1]['reached']}", file=sys.stderr, flush=True)
    late = [f"{run['who']}, seed {run['seed']}" for run in runs if run["reached"] is None]
    if late:
        raise SystemExit(f"{ACCURACY:.1%} was not reached within {options.most} iterations: {', '.join(late)}")
    figures = {
        f"{name}, samples": statistics.median(run["reached"] * HOSTS * BATCH for run in runs if run["who"] == name)
        for name in names.values()
    }
    plain, stale = figures.values()
    return {"ratio": stale / plain, "figures": figures, "runs": runs}


def managed(options: argparse.Namespace) -> Found:
    whole = bytes_per_clock(options.data)
    runs = []
    for seed in range(options.seeds):
        for order in (RowOrder.IMPORTANCE, RowOrder.RANDOM):
            losses, sent = losses_of(options.clocks, options.data, order, options.budget * whole, seed, options.base_lr)
            clocks, rounded = first_below(losses, options.target), [round(loss, 4) for loss in losses]
            runs.append({"who": order.value, "seed": seed, "clocks": clocks, "sent": sent / whole, "losses": rounded})
            shown = f"seed {seed}, {order.value}: {clocks} clocks, {sent / whole:.3f} of the bytes of s = 0"
            print(f"# {shown}", file=sys.stderr, flush=True)
    return {
        **clocks_of(runs, options.target),
        "target": options.target,
        "budget": options.budget,
        "base_lr": options.base_lr,
        "runs": runs,
    }


def clocks_of(runs: Sequence[dict[str, Any]], target: float) -> Found:
    """Medians over seeds. Rows at random that do not bring the loss down at all count as if they did in the clock after
    the last: the ratio is then at most what is said. Of the most important ones each run must get there."""
    late = [f"seed {run['seed']}" for run in runs if run["clocks"] is None and run["who"] == RowOrder.IMPORTANCE.value]
    if late:
        raise SystemExit(f"the loss did not fall to {target:g}: {', '.join(late)}; try more --clocks")
    figures = {
        f"{order.value}, clocks": statistics.median(
            run["clocks"] or 1 + len(run["losses"]) for run in runs if run["who"] == order.value
        )
        for order in (RowOrder.IMPORTANCE, RowOrder.RANDOM)
    }
    important, at_random = figures.values()
    return {"ratio": important / at_random, "figures": figures}


PARTS: dict[str, Callable[[argparse.Namespace], Found]] = {
    "throughput": throughput,
    "samples": samples,
    "balance": balance,
    "managed": managed,
}


# -- the command ------------------------------------------------------------------------------------------------------
def holds(part: str, ratio: float) -> bool:
    least, most = LIMITS[part]
    return (least is None or ratio >= least) and (most is None or ratio <= most)


def line(part: str, found: Found) -> str:
    least, most = LIMITS[part]
    limit = f"at least {least}" if least is not None else f"at most {most}"
    figures = "; ".join(f"{name}: {value:.4g}" for name, value in found["figures"].items())
    verdict = "holds" if holds(part, found["ratio"]) else "MISSED"
    return f"{part:12} {found['ratio']:6.2f}   {limit}: {verdict}   ({figures})"


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--runs", type=int, default=3, help="of everything that is measured in the lab (3)")
    parser.add_argument("--iterations", type=int, default=60, help="measured, and as many before (60)")
    parser.add_argument("--most", type=int, default=4000, help="iterations until ACCURACY (4000)")
    parser.add_argument("--sample-s", type=float, default=0.02 / BATCH, help="of `samples`: seconds per sample")
    parser.add_argument("--clocks", type=int, default=200, help="of `managed` (200)")
    parser.add_argument("--base-lr", type=float, default=0.01, help="of `managed` (0.01, that of models/lenet)")
    parser.add_argument("--seeds", type=int, default=5, help="of `managed` (5)")
    parser.add_argument("--target", type=float, default=TARGET)
    parser.add_argument("--budget", type=float, default=0.25, help="of what s = 0 sends per clock (0.25)")
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="where `poseidon data mnist` made databases")
    parser.add_argument("--from", type=Path, dest="source", help="MNIST's files, to make databases from")
    parser.add_argument("--json", type=Path, default=RAW)
    parser.add_argument("--draw", action="store_true", help="only the pictures, from figures that are there")
    return parser.parse_args(words)


def main() -> int:
    options = options_of()
    results: dict[str, Found] = json.loads(options.json.read_text()) if options.json.exists() else {}
    parts = [] if options.draw else options.parts.split(",")
    if parts and not has_data(SUBJECTS["lenet"], options.data, {"mnist": options.source} if options.source else {}):
        raise SystemExit(f"MNIST is not in {options.data}: give its files with --from, or run `poseidon data mnist`")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for part in parts:
        results[part] = PARTS[part](options)
        print(line(part, results[part]), flush=True)
        options.json.write_text(json.dumps(results) + "\n")  # each part when it is done: the next takes minutes
    draw_all(results, options.json.parent)
    return 0 if all(holds(part, results[part]["ratio"]) for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
