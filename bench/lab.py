"""Training on an emulated cluster: ours beside PyTorch's DistributedDataParallel, on real TCP over shaped links.

    sudo python -m bench.lab [--subjects alexnet,vgg19] [--hosts 8] [--rate 1gbit] [--rounds 2] [--json OUT]

Every host is a network namespace with a link of the given rate (`netlab.py`); one contender's processes run at a time,
contenders take turns, figures are medians over all rounds. Compute is paced (`lab_worker.py`). The limit is what no
system can beat: max(compute, least bytes any of our schemes sends / payload bandwidth).

    auto           ours, as planned;   ring, server, factors, factor-server   by force (--forced)
    ddp, ddp@MB    DistributedDataParallel over gloo, with its own buckets and others (--buckets)
    ddp-fp16, ddp-powersgd   with torch's compression hooks: lossy. What PowerSGD multiplies is not paced: the hosts'
                   processors compute it. torch's bf16 hook refuses gloo, so that there is no ddp-bf16

Exit code 1 if a goal is missed, on the hosts and at the rate that goals are for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lab_nets import SUBJECTS
from bench.netlab import payload_seconds

ROOT = Path(__file__).resolve().parent.parent
CONTENDERS = ("auto", "ddp", "ddp-fp16", "ddp-powersgd")
FORCED = ("ring", "server", "factors", "factor-server")
LOSSY = ("ddp-fp16", "ddp-powersgd")
WARM_UP = 6  # iterations: some runs begin slowly, ours and DDP's, until their connections have found their pace


@dataclass(frozen=True, slots=True)
class Goal:
    """At least so many times as fast as DDP, and so near to the limit (None: as near as it gets)."""

    times_ddp: float
    of_limit: float | None


GOAL_HOSTS, GOAL_RATE = 8, "1gbit"
GOALS = {
    "alexnet": Goal(7.0, 0.92),
    "vgg19": Goal(5.0, 0.92),
    "resnet50": Goal(1.22, 0.92),
    "googlenet": Goal(1.1, None),
}
NEVER_BELOW = Goal(1.0, None)  # whatever else compute takes


def run_once(contender: str, subject: str, options: argparse.Namespace) -> dict[str, Any]:
    """One contender's run on fresh hosts; rank 0's figures."""
    name, _, bucket = contender.partition("@")
    command = [sys.executable, "-m", "bench.netlab", "run", "-n", str(options.hosts), "--rate", options.rate, "--"]
    command += [sys.executable, "-m", "bench.lab_worker", "--contender", name, "--subject", subject]
    command += ["--iterations", str(options.iterations), "--warm-up", str(WARM_UP)]
    if bucket:
        command += ["--bucket-mb", bucket]
    if options.compute_s is not None:
        command += ["--compute-s", str(options.compute_s)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=options.timeout)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{contender} on {subject} failed (exit code {done.returncode}):\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def compare(subject: str, options: argparse.Namespace) -> dict[str, Any]:
    contenders = [*options.contenders.split(","), *(f"ddp@{bucket}" for bucket in options.buckets.split(",") if bucket)]
    contenders += FORCED if options.forced else ()
    runs: dict[str, list[dict[str, Any]]] = {contender: [] for contender in contenders}
    for _ in range(options.rounds):
        for contender in contenders:
            runs[contender].append(run_once(contender, subject, options))
            print(f"  {subject} {contender}: {runs[contender][-1]['median_s']:.3f} s", file=sys.stderr, flush=True)
    by_round = {contender: [run["median_s"] for run in found] for contender, found in runs.items()}
    seconds = {contender: statistics.median(found) for contender, found in by_round.items()}
    compute_s = SUBJECTS[subject].compute_s if options.compute_s is None else options.compute_s
    least_bytes = min(run["bytes_sent"] for found in runs.values() for run in found if "bytes_sent" in run)
    limit_s = max(compute_s, payload_seconds(least_bytes, options.rate))
    lossless = [contender for contender in contenders if contender.startswith("ddp") and contender not in LOSSY]
    ddp_s = min(seconds[contender] for contender in lossless)
    predicted_s = [run["predicted_s"] for run in runs["auto"]]
    best_forced = min((seconds[contender] for contender in FORCED if contender in seconds), default=None)
    return {
        "subject": subject,
        "hosts": options.hosts,
        "rate": options.rate,
        "compute_s": compute_s,
        "limit_s": limit_s,
        "seconds": seconds,
        "times_ddp": ddp_s / seconds["auto"],
        "of_limit": limit_s / seconds["auto"],
        "of_best_forced": None if best_forced is None else seconds["auto"] / best_forced,
        "turns": {
            "times_ddp": [min(others) / auto for auto, *others in _rounds(by_round, lossless)],
            "of_limit": [limit_s / auto for auto in by_round["auto"]],
            "of_predicted": [a / p for a, p in zip(by_round["auto"], predicted_s, strict=True)],
        },
        "peak_mb": {contender: max(run["peak_mb"] for run in found) for contender, found in runs.items()},
        "predicted_s": statistics.median(predicted_s),
    }


def _rounds(by_round: Mapping[str, Sequence[float]], others: Sequence[str]) -> Iterable[tuple[float, ...]]:
    """Ours and the others', round by round."""
    return zip(by_round["auto"], *(by_round[name] for name in others), strict=True)


def missed(result: Mapping[str, Any]) -> list[str]:
    """The goals that a result does not reach, in words."""
    if (result["hosts"], result["rate"]) != (GOAL_HOSTS, GOAL_RATE):
        return []
    is_usual = result["compute_s"] == SUBJECTS[result["subject"]].compute_s
    goal, found = GOALS[result["subject"]] if is_usual else NEVER_BELOW, []
    if result["times_ddp"] < goal.times_ddp:
        found.append(f"{result['subject']}: {result['times_ddp']:.2f} times DDP, the goal is {goal.times_ddp:g}")
    if goal.of_limit is not None and result["of_limit"] < goal.of_limit:
        found.append(f"{result['subject']}: {result['of_limit']:.3f} of the limit, the goal is {goal.of_limit:g}")
    return found


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", default=",".join(SUBJECTS))
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--compute-s", type=float, help="seconds of compute per iteration, instead of the subject's")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="auto, ddp, and what else to compare")
    parser.add_argument("--buckets", default="", help="further bucket sizes for DDP, in MB, separated by commas")
    parser.add_argument("--forced", action="store_true", help="also every scheme by force")
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    if missing := {"auto", "ddp"} - set(options.contenders.split(",")):
        names = " and ".join(sorted(missing))
        parser.error(
            f"--contenders {options.contenders}: {names} must be among them, all figures are ratios of the two"
        )
    return options


def main() -> int:
    options = options_of()
    results = []
    lossy = [name for name in LOSSY if name in options.contenders.split(",")]
    print(
        f"{'net':12}{'ours':>9}{'DDP':>9}{''.join(f'{name:>14}' for name in lossy)}{'limit':>9}{'x DDP':>8}"
        f"{'of limit':>10}{'predicted':>11}{'of best forced':>16}"
    )
    for subject in options.subjects.split(","):
        result = compare(subject, options)
        results.append(result)
        seconds, forced = result["seconds"], result["of_best_forced"]
        print(
            f"{subject:12}{seconds['auto']:>8.3f}s{seconds['ddp']:>8.3f}s"
            f"{''.join(f'{seconds[name]:>13.3f}s' for name in lossy)}"
            f"{result['limit_s']:>8.3f}s{result['times_ddp']:>8.2f}{result['of_limit']:>10.3f}"
            f"{result['predicted_s']:>10.3f}s{'' if forced is None else f'{forced:>16.3f}'}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    short = [line for result in results for line in missed(result)]
    print("\n".join(f"missed     {line}" for line in short), end="\n" if short else "")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
