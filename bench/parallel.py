"""poseidon.Parallel beside PyTorch's DistributedDataParallel on an emulated cluster, on real TCP over shaped links.

    sudo python -m bench.parallel [--subjects embedding,connected] [--hosts 4] [--rate 1gbit] [--rounds 2] [--json OUT]
                                 [--gpu-tflops 1.5]

Contenders, each the same model and batch (32 per worker):

    ours, ours-plain     Parallel with and without overlap
    ddp, ddp-sparse      DistributedDataParallel as it comes, and with sparse=True embeddings: lossless, like ours
    ddp-fp16, ddp-powersgd   with torch's own compression hooks: lossy

Every host is a network namespace with a link of the given rate (`netlab.py`); one contender runs at a time, contenders
take turns, figures are medians over all rounds. What a GPU would compute is paced (`parallel_subjects.py`). Our limit
is the least time in which the link carries what we send in an iteration, as the link itself counts it.
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

from bench.lab_nets import GPU_FLOPS
from bench.netlab import SHAPED_FRACTION, payload_seconds

ROOT = Path(__file__).resolve().parent.parent
CONTENDERS = ("ours", "ours-plain", "ddp", "ddp-sparse", "ddp-fp16", "ddp-powersgd")
LOSSLESS = ("ddp", "ddp-sparse")
SUBJECTS = ("embedding", "connected", "transformer", "resnet")
WITH_TABLE = ("embedding", "transformer")


def run_once(contender: str, subject: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """One contender's run on fresh hosts; rank 0's figures. None if one of torch's lossy hooks did not get through."""
    command = [sys.executable, "-m", "bench.netlab", "run", "-n", str(options.hosts), "--rate", options.rate, "--"]
    command += [sys.executable, "-m", "bench.parallel_worker", "--contender", contender, "--subject", subject]
    command += ["--iterations", str(options.iterations), "--gpu-tflops", str(options.gpu_tflops)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=options.timeout)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if (done.returncode or not lines) and contender not in ("ours", "ours-plain", *LOSSLESS):
        print(f"  {contender} on {subject} failed: {done.stderr.strip()[-200:]}", file=sys.stderr)
        return None
    if done.returncode or not lines:
        raise SystemExit(f"{contender} on {subject} failed (exit code {done.returncode}):\n{done.stderr[-3000:]}")
    if options.plans and contender.startswith("ours"):
        print(done.stderr, file=sys.stderr)
    return json.loads(lines[-1])


def compare(subject: str, options: argparse.Namespace) -> dict[str, Any]:
    wanted = options.contenders.split(",") if options.contenders else CONTENDERS
    contenders = [name for name in wanted if name != "ddp-sparse" or subject in WITH_TABLE]
    seconds: dict[str, list[float]] = {contender: [] for contender in contenders}
    sent: list[float] = []  # by ours
    for _ in range(options.rounds):
        for contender in contenders:
            found = run_once(contender, subject, options)
            if found is None:
                continue
            seconds[contender].append(found["median_s"])
            sent += [found["sent_bytes"]] if contender == "ours" else []
            print(f"  {subject} {contender}: {found['median_s']:.4f} s {found['all_s']}", file=sys.stderr, flush=True)
    medians = {contender: statistics.median(found) for contender, found in seconds.items() if found}
    result: dict[str, Any] = {"subject": subject, "hosts": options.hosts, "rate": options.rate}
    result |= {"gpu_tflops": options.gpu_tflops, "seconds": medians}
    if sent:
        result["limit_s"] = payload_seconds(statistics.median(sent), options.rate, SHAPED_FRACTION)
    lossless = [name for name in LOSSLESS if name in medians]
    if lossless and "ours" in medians:
        result["times_best_lossless"] = min(medians[name] for name in lossless) / medians["ours"]
        rounds = zip(seconds["ours"], *(seconds[name] for name in lossless), strict=True)
        result["turns"] = [min(others) / ours for ours, *others in rounds]
    return result


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", default=",".join(SUBJECTS))
    parser.add_argument("--contenders", default="", help="some only, separated by commas")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--gpu-tflops", type=float, default=GPU_FLOPS / 1e12, help="what the paced GPU multiplies")
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--plans", action="store_true", help="show our plans")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(words)


def main() -> int:
    options = options_of()
    results = []
    print(f"{'model':14}" + "".join(f"{name:>14}" for name in (*CONTENDERS, "our limit")) + f"{'x lossless':>12}")
    for subject in options.subjects.split(","):
        result = compare(subject, options)
        results.append(result)
        cells = [f"{result['seconds'][n]:>13.3f}s" if n in result["seconds"] else f"{'-':>14}" for n in CONTENDERS]
        cells.append(f"{result['limit_s']:>13.3f}s" if "limit_s" in result else f"{'-':>14}")
        ratio = result.get("times_best_lossless")
        print(f"{subject:14}" + "".join(cells) + (f"{ratio:>12.2f}" if ratio else ""), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
