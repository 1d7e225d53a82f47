"""Training on an emulated cluster: ours beside PyTorch's DistributedDataParallel, on real TCP over shaped links.

    sudo python -m bench.lab [--subjects alexnet,vgg19] [--hosts 8] [--rate 1gbit] [--rounds 2] [--json OUT]

Every host is a network namespace with a link of the given rate (`netlab.py`); one contender's processes run at a time,
contenders take turns, figures are medians over all rounds. Compute is paced (`lab_worker.py`). The limit is what no
system can beat: max(compute, least bytes any of our schemes sends / payload bandwidth).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lab_nets import SUBJECTS
from bench.netlab import payload_seconds

ROOT = Path(__file__).resolve().parent.parent
CONTENDERS = ("auto", "ddp", "ddp-fp16")
FORCED = ("ring", "server", "factors", "factor-server")


def run_once(contender: str, subject: str, options: argparse.Namespace) -> dict[str, Any]:
    """One contender's run on fresh hosts; rank 0's figures."""
    name, _, bucket = contender.partition("@")
    command = [sys.executable, "-m", "bench.netlab", "run", "-n", str(options.hosts), "--rate", options.rate, "--"]
    command += [sys.executable, "-m", "bench.lab_worker", "--contender", name, "--subject", subject]
    command += ["--iterations", str(options.iterations)]
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
    contenders = [*CONTENDERS, *(f"ddp@{bucket}" for bucket in options.buckets.split(",") if bucket)]
    contenders += FORCED if options.forced else ()
    runs: dict[str, list[dict[str, Any]]] = {contender: [] for contender in contenders}
    for _ in range(options.rounds):
        for contender in contenders:
            runs[contender].append(run_once(contender, subject, options))
            print(f"  {subject} {contender}: {runs[contender][-1]['median_s']:.3f} s", file=sys.stderr, flush=True)
    seconds = {contender: statistics.median(run["median_s"] for run in found) for contender, found in runs.items()}
    compute_s = SUBJECTS[subject].compute_s if options.compute_s is None else options.compute_s
    least_bytes = min(run["bytes_sent"] for found in runs.values() for run in found if "bytes_sent" in run)
    limit_s = max(compute_s, payload_seconds(least_bytes, options.rate))
    ddp_s = min(
        value for contender, value in seconds.items() if contender.startswith("ddp") and "fp16" not in contender
    )
    return {
        "subject": subject,
        "hosts": options.hosts,
        "rate": options.rate,
        "limit_s": limit_s,
        "seconds": seconds,
        "times_ddp": ddp_s / seconds["auto"],
        "of_limit": limit_s / seconds["auto"],
        "peak_mb": {contender: max(run["peak_mb"] for run in found) for contender, found in runs.items()},
        "predicted_s": runs["auto"][0]["predicted_s"],
    }


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", default=",".join(SUBJECTS))
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--compute-s", type=float, help="seconds of compute per iteration, instead of the subject's")
    parser.add_argument("--buckets", default="", help="further bucket sizes for DDP, in MB, separated by commas")
    parser.add_argument("--forced", action="store_true", help="also every scheme by force")
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(words)


def main() -> int:
    options = options_of()
    results = []
    print(f"{'net':12}{'ours':>9}{'DDP':>9}{'fp16 DDP':>10}{'limit':>9}{'x DDP':>8}{'of limit':>10}{'predicted':>11}")
    for subject in options.subjects.split(","):
        result = compare(subject, options)
        results.append(result)
        seconds = result["seconds"]
        print(
            f"{subject:12}{seconds['auto']:>8.3f}s{seconds['ddp']:>8.3f}s{seconds['ddp-fp16']:>9.3f}s"
            f"{result['limit_s']:>8.3f}s{result['times_ddp']:>8.2f}{result['of_limit']:>10.3f}"
            f"{result['predicted_s']:>10.3f}s",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
