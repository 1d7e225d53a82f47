"""What pauses cost: in each iteration every worker, with a probability, does nothing for half an iteration.

    sudo python -m bench.pauses [--subject googlenet] [--hosts 8] [--rounds 3] [--iterations 40] [--calm 12]

The first `calm` iterations have no pauses; time lost = the mean of the others − the median of these. The pauses are the
same for all contenders (`lab_device.py`). Beside it, two figures that no network comes into: what is lost if every
forward pass of a layer waits for all workers' backward passes of it (the critical path: no exact scheme can lose less,
unless waiting for the network hides a pause), and what is lost if every iteration waits for the slowest worker.

Contenders take turns, figures are medians over rounds. Exit code 1 if notified puts lose more than GOAL of what DDP
loses.
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

from bench.lab_device import Pauses
from bench.lab_nets import SUBJECTS
from bench.lab_worker import build
from poseidon.run.layer_times import LayerTime

ROOT = Path(__file__).resolve().parent.parent
PROBABILITY = 0.05
GOAL = 0.6  # of what DDP loses


def run_once(contender: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.netlab", "run", "-n", str(options.hosts), "--rate", options.rate, "--"]
    command += [sys.executable, "-m", "bench.lab_worker", "--contender", contender, "--subject", options.subject]
    command += ["--iterations", str(options.iterations)]
    command += ["--pauses", str(PROBABILITY), "--calm", str(options.calm)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{contender} failed (exit code {done.returncode}):\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def lost_s(all_s: Sequence[float], calm: int) -> tuple[float, float]:
    """(an undisturbed iteration, what pauses add to one)."""
    calm_s = statistics.median(all_s[2 : 2 + calm])
    return calm_s, statistics.fmean(all_s[2 + calm :]) - calm_s


def bounds_s(times: Sequence[LayerTime], options: argparse.Namespace) -> tuple[float, float]:
    """Lost per iteration without a network: by the critical path, and if all wait for the slowest."""
    compute_s = sum(t.forward_s + t.backward_s for t in times)
    pauses = Pauses(PROBABILITY, SUBJECTS[options.subject].compute_s / 2, options.calm + 2)
    rounds = range(options.calm + 2, options.iterations + 2)
    clocks, ready = [0.0] * options.hosts, [0.0] * len(times)
    slowest_s = 0.0
    for iteration in rounds:
        finished = [0.0] * len(times)
        places = [pauses.place(rank, iteration, 2 * len(times)) for rank in range(options.hosts)]
        slowest_s += pauses.seconds if any(place is not None for place in places) else 0.0
        for rank, place in enumerate(places):
            now = clocks[rank]
            for step in range(2 * len(times)):
                is_forward = step < len(times)
                layer = step if is_forward else 2 * len(times) - 1 - step
                now += pauses.seconds if step == place else 0.0
                now = max(now, ready[layer]) + times[layer].forward_s if is_forward else now + times[layer].backward_s
                if not is_forward:
                    finished[layer] = max(finished[layer], now)
            clocks[rank] = now
        ready = finished
    return max(clocks) / len(rounds) - compute_s, slowest_s / len(rounds)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Of every contender, its rounds; and the bounds."""
    critical_s, slowest_s = bounds_s(build(SUBJECTS[options.subject])[1], options)
    rounds: dict[str, list[dict[str, float]]] = {contender: [] for contender in options.contenders.split(",")}
    for _ in range(options.rounds):
        for contender, found in rounds.items():
            calm_s, more_s = lost_s(run_once(contender, options)["all_s"], options.calm)
            found.append({"calm_s": calm_s, "lost_s": more_s})
            print(f"# {contender}: {calm_s:.3f} s, {more_s * 1e3:.1f} ms lost", file=sys.stderr, flush=True)
    return {"critical_s": critical_s, "slowest_s": slowest_s, "rounds": rounds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", default="googlenet", choices=SUBJECTS)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--calm", type=int, default=12)
    parser.add_argument("--contenders", default="gpi,ddp")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options)
    lost = {}
    for contender, rounds in found["rounds"].items():
        calm_s, lost[contender] = (statistics.median(entry[name] for entry in rounds) for name in ("calm_s", "lost_s"))
        print(f"{contender:12}{calm_s:>8.3f} s undisturbed, {lost[contender] * 1e3:>6.1f} ms lost per iteration")
    critical_ms, slowest_ms = found["critical_s"] * 1e3, found["slowest_s"] * 1e3
    print(f"without a network: critical path {critical_ms:.1f} ms, slowest worker {slowest_ms:.1f} ms")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if not {"gpi", "ddp"} <= lost.keys():
        return 0
    share = lost["gpi"] / lost["ddp"]
    print(f"gpi loses {share:.2f} of what DDP loses, at most {GOAL}{'' if share <= GOAL else ': MISSED'}")
    return 0 if share <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
