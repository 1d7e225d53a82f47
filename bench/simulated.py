"""The simulator beside the lab: the same plan, on emulated hosts and in simulated time.

    sudo python -m bench.simulated [--cases googlenet:auto:8:1gbit,…] [--rounds 3] [--json OUT] [--keep FOLDER]
    python -m bench.simulated --seen FOLDER …                     what earlier runs have left (--keep), without the lab
    python -m bench.simulated --page                              the table of docs/simulate.md

Every case is a run of the lab (`lab_worker.py`): net, scheme, hosts, rate of their links. What the workers measure
before they start describes the cluster: α, o and β of the links (transport/probe.py), payload that a host's processor
handles, and from the run itself how much compute varies from worker to worker (it is paced; what varies is when threads
get a processor). The plan, with that description, is then played, and compared:

    time    median of iterations, lab and simulated; besides, simulated as if compute did not vary
    order   starts: whether Sends start in the same order. events: of all pairs of events of an iteration (a unit is
            ready, starts, ends) that lie further apart than 5% of it in the lab, how many come in the same order when
            simulated

A host of the lab is as fast as others let it be at the moment: cases take turns, and the medians of the rounds count.
Times must agree to 10%, starts must be in the same order in all rounds, and so must 99% of the pairs: exit code 1 if
one does not. Figures go to docs/simulate/lab.json, round by round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lab import ROOT
from poseidon.plan import CommPlan, NetProfile
from poseidon.simulate import Happening, Machines, play

CASES = (
    "alexnet:auto:8:1gbit",
    "vgg19:auto:8:1gbit",
    "resnet50:auto:8:1gbit",
    "googlenet:auto:8:1gbit",
    "alexnet:auto:4:1gbit",
    "vgg19:auto:4:1gbit",
    "resnet50:auto:4:1gbit",
    "googlenet:auto:4:500mbit",
    "googlenet:ring:4:1gbit",
    "alexnet:server:4:1gbit",
    "alexnet:factor-server:4:1gbit",
    "alexnet:factors:4:500mbit",
    "resnet50:server:4:2gbit",
    "googlenet:factors:2:500mbit",
    "vgg19:factors:4:1gbit",
    "alexnet:ring:8:1gbit",
)
WARM_UP = 2
APART = 0.05
MOST_OFF = 0.10
LEAST_IN_ORDER = 0.99
DOCS = ROOT / "docs"
RESULTS = DOCS / "simulate" / "lab.json"
PAGE = DOCS / "simulate.md"
BEGIN, END = "<!-- from simulate/lab.json: python -m bench.simulated --page -->", "<!-- until here -->"
KINDS = {"UnitReady": "ready", "SendStarted": "start", "UnitDone": "end"}
Key = tuple[str, int]
"""Kind and unit of an event."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What all ranks of a run have seen. `begun`: by rank, when iterations began."""

    profile: NetProfile
    plan: CommPlan
    handling_bps: float
    begun: tuple[tuple[float, ...], ...]
    events: tuple[list[list[Any]], ...]

    @property
    def iteration_s(self) -> float:
        return statistics.median(b - a for rank in self.begun for a, b in itertools.pairwise(rank[WARM_UP:]))

    def moments(self) -> list[dict[Key, list[float]]]:
        """By rank: seconds after the beginning of the iteration, in each that counts, of every event."""
        found = []
        for begun, events in zip(self.begun, self.events, strict=True):
            counts: dict[tuple[str, int, Any], int] = defaultdict(int)
            moments: dict[Key, list[float]] = defaultdict(list)
            for time_s, name, unit, place in events:
                if name not in KINDS or (place is not None and place[0] != 0):
                    continue
                iteration = counts[name, unit, None]
                counts[name, unit, None] += 1
                if WARM_UP <= iteration < len(begun):
                    moments[KINDS[name], unit].append(time_s - begun[iteration])
            found.append(moments)
        return found

    def starts(self) -> list[Key]:
        """Rank 0's Sends of one iteration, by unit and first element, as they started."""
        first = [(unit, place[0]) for _, name, unit, place in self.events[0] if name == "SendStarted"]
        number = len(self.plan.order)
        return first[WARM_UP * number : (WARM_UP + 1) * number]

    def jitter(self) -> float:
        """Standard deviation of the time from a worker's first ready unit to its last, over compute."""
        spans = []
        for moments in self.moments():
            ready = [times for (kind, _), times in moments.items() if kind == "ready"]
            spans += [max(row) - min(row) for row in zip(*ready, strict=False)]
        return min(0.5, statistics.pstdev(spans) / self.profile.compute_s) if len(spans) > 1 else 0.0


def read_seen(folder: Path) -> Seen:
    files = sorted(folder.glob("seen-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
    found = [json.loads(path.read_text()) for path in files]
    return Seen(
        NetProfile.from_json(json.dumps(found[0]["profile"])),
        CommPlan.from_json(json.dumps(found[0]["plan"])),
        statistics.median(entry.get("handling_bps", math.inf) for entry in found),
        tuple(tuple(entry["begun"]) for entry in found),
        tuple(entry["events"] for entry in found),
    )


def run_lab(case: str, folder: Path, iterations: int) -> None:
    """The case on fresh hosts; every rank writes what it has seen into the folder."""
    subject, contender, hosts, rate = case.split(":")
    command = [sys.executable, "-m", "bench.netlab", "run", "-n", hosts, "--rate", rate, "--"]
    command += [sys.executable, "-m", "bench.lab_worker", "--contender", contender, "--subject", subject]
    command += ["--iterations", str(iterations), "--seen", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(f"{case} failed (exit code {done.returncode}):\n{done.stderr[-2000:]}")


def simulate(seen: Seen, iterations: int, jitter: float) -> tuple[float, dict[Key, float], list[Key]]:
    """Median seconds of an iteration, when events come in it, and the order of Sends."""
    machines = Machines(seen.plan.cluster, handling_bps=seen.handling_bps, jitter=jitter)
    heard: list[Happening] = []
    played = play(
        seen.plan,
        seen.profile,
        machines,
        iterations,
        lambda rank: (lambda _, what: heard.append(what)) if rank == 0 else None,
    )
    begins = [0.0, *itertools.accumulate(played.iteration_s[0])]
    moments: dict[Key, list[float]] = defaultdict(list)
    for what in heard:
        if what.kind in KINDS.values() and what.iteration >= WARM_UP:
            moments[what.kind, what.index].append(what.start_s - begins[what.iteration])
    chunks = defaultdict(list)
    for send in seen.plan.order:
        chunks[send.unit].append(send.start)
    moves = sorted(
        (e for e in heard if e.kind == "move" and not e.is_pull and e.iteration == WARM_UP), key=lambda e: e.start_s
    )
    order = [(move.index, chunks[move.index][move.chunk or 0]) for move in moves]
    median_s = statistics.median(seconds for worker in played.iteration_s for seconds in worker[WARM_UP:])
    return median_s, {key: statistics.median(times) for key, times in moments.items()}, order


def in_order(seen: Seen, simulated: dict[Key, float], iteration_s: float) -> float:
    """The share of pairs of events, apart in the lab, that come in the same order when simulated."""
    gathered: dict[Key, list[float]] = defaultdict(list)
    for moments in seen.moments():
        for key, times in moments.items():
            gathered[key] += times
    lab = {key: statistics.median(times) for key, times in gathered.items() if key in simulated}
    pairs = [(a, b) for a, b in itertools.permutations(lab, 2) if lab[b] - lab[a] > APART * iteration_s]
    same = sum(simulated[a] < simulated[b] for a, b in pairs)
    return same / len(pairs) if pairs else 1.0


def compare(case: str, folder: Path) -> dict[str, Any]:
    seen = read_seen(folder)
    simulated_s, moments, order = simulate(seen, 10, seen.jitter())
    steady_s, _, _ = simulate(seen, 10, 0.0)
    return {
        "case": case,
        "lab_s": seen.iteration_s,
        "simulated_s": simulated_s,
        "ratio": simulated_s / seen.iteration_s,
        "ratio_without_jitter": steady_s / seen.iteration_s,
        "planned_s": seen.plan.iteration_s,
        "same_starts": sorted(order) == sorted(seen.starts()) and _same_order(order, seen.starts()),
        "events_in_order": in_order(seen, moments, seen.iteration_s),
        "jitter": seen.jitter(),
        "handling_mbps": seen.handling_bps / 1e6,
        "cluster": json.loads(seen.plan.cluster.to_json()),
    }


def over_rounds(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A case's medians, and its rounds as they were."""
    names = ("lab_s", "simulated_s", "ratio", "ratio_without_jitter", "planned_s", "events_in_order")
    medians = {name: statistics.median(entry[name] for entry in found) for name in names}
    same_starts = all(entry["same_starts"] for entry in found)
    return {"case": found[0]["case"], **medians, "same_starts": same_starts, "rounds": list(found)}


def _same_order(simulated: list[Key], lab: list[Key]) -> bool:
    """Sends that start at the same moment may be told in any order."""
    return [unit for unit, _ in simulated] == [unit for unit, _ in lab] or simulated == lab


def agrees(result: Mapping[str, Any]) -> bool:
    return (
        abs(result["ratio"] - 1) <= MOST_OFF and result["same_starts"] and result["events_in_order"] >= LEAST_IN_ORDER
    )


# -- the page ---------------------------------------------------------------------------------------------------------
def results_text(results: Sequence[Mapping[str, Any]]) -> str:
    """The table, and what it comes to."""
    lines = [
        "| net, scheme, hosts, rate | lab | simulated | simulated / lab | without jitter | by the plan's quick model "
        "| Sends start | events in order |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        net, scheme, hosts, rate = result["case"].split(":")
        ratios = [entry["ratio"] for entry in result["rounds"]]
        lines.append(
            f"| {net}, {scheme}, {hosts}, {rate} | {result['lab_s']:.3f} s | {result['simulated_s']:.3f} s "
            f"| {result['ratio']:.2f} ({min(ratios):.2f} – {max(ratios):.2f}) "
            f"| {result['ratio_without_jitter']:.2f} | {result['planned_s']:.3f} s "
            f"| {'alike' if result['same_starts'] else 'otherwise'} | {result['events_in_order']:.1%} |"
        )
    num_agree = sum(map(agrees, results))
    lines += ["", f"{num_agree} of {len(results)} cases agree: time within {MOST_OFF:.0%}, and in order."]
    return "\n".join(lines)


def write_page() -> None:
    """Puts the table where docs/simulate.md has room for it."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE} has room for the table between {BEGIN!r} and {END!r}"
    table = results_text(json.loads(RESULTS.read_text()))
    PAGE.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")
    print(f"wrote {PAGE}")


def print_line(result: Mapping[str, Any]) -> None:
    starts = "same" if result["same_starts"] else "other"
    print(
        f"{result['case']:32}{result['lab_s']:>8.3f}s{result['simulated_s']:>10.3f}s{result['ratio']:>8.2f}"
        f"{result['ratio_without_jitter']:>8.2f}{result['planned_s']:>8.3f}s{starts:>8}"
        f"{result['events_in_order'] * 100:>7.1f}%",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="NET:SCHEME:HOSTS:RATE, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--seen", type=Path, help="folders that earlier runs have left, instead of the lab")
    parser.add_argument("--keep", type=Path, help="where to leave what the lab's workers have seen")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where figures go (docs/simulate/lab.json)")
    parser.add_argument("--page", action="store_true", help="write the table of docs/simulate.md from the figures")
    options = parser.parse_args()
    if options.page:
        write_page()
        return 0
    options.json.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, Any]]] = {case: [] for case in options.cases.split(",")}
    results: list[dict[str, Any]] = []
    print(f"{'case':32}{'lab':>9}{'simulated':>11}{'ratio':>8}{'steady':>8}{'plan':>9}{'starts':>8}{'events':>8}")
    with tempfile.TemporaryDirectory() as scratch:
        for number, case in itertools.product(range(options.rounds), found):
            folder = (options.seen or options.keep or Path(scratch)) / str(number) / case.replace(":", "-")
            if options.seen is None:
                folder.mkdir(parents=True, exist_ok=True)
                run_lab(case, folder.resolve(), options.iterations)
            found[case].append(compare(case, folder))
            print_line(found[case][-1])
            results = [over_rounds(rounds) for rounds in found.values() if rounds]
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.rounds > 1:
        print("medians")
        for result in results:
            print_line(result)
    off = [result["case"] for result in results if not agrees(result)]
    if off:
        print(f"off by more than {MOST_OFF:.0%}, or in another order: {', '.join(off)}")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
