"""The suite: all benchmarks in one run, as ratios, beside the last run that was recorded.

    poseidon bench [--quick] [--sections device,data] [--caffe PATH] [--against FILE] [--norecord] [--accept]

Each section runs in a process of its own (`bench/sections.py`); inside it contenders take turns. A run is recorded in
bench/records/ as JSON. A section is compared with the newest record of the same kind, quick or not, and of as many
cores, that has it: a ratio that has become worse by more than 10 % is a fall. A section that fell is recorded, and
compared with by nobody: what fell once would be no fall the next time. `--accept` says that it is meant to be so.

Exit code 1: something fell, a ratio is over its limit, or a section failed. Sections that need root, or data, which are
not there, are left out, and that is said.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from bench.ratio import Ratio

ROOT = Path(__file__).resolve().parent.parent
RECORDS = Path(__file__).resolve().parent / "records"
MOST_FALL = 0.10
# Contenders that no section has, and why.
OTHERS = {
    "DDP with bf16": "torch's bf16 hook refuses gloo, the only engine for CPUs and Ethernet; fp16 is in `lab`",
    "Horovod, BytePS": "no section has them: neither could be built here (docs/performance.md says how far it went)",
}


@dataclass(frozen=True, slots=True)
class Record:
    """One run of the suite. `left_out`: sections that did not run, and why; `fell`: those that others are not to be
    compared with."""

    when: str
    machine: str
    num_cores: int
    torch: str
    quick: bool
    seconds: float
    sections: dict[str, list[Ratio]]
    left_out: dict[str, str]
    fell: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        found = json.loads(text)
        found["sections"] = {name: [Ratio(**entry) for entry in ratios] for name, ratios in found["sections"].items()}
        return cls(**found)


# -- comparing --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Fall:
    section: str
    name: str
    before: float
    now: float
    part: float
    since: str

    def __str__(self) -> str:
        change = f"from {self.before:.3f} to {self.now:.3f}"
        return f"{self.section}: {self.name} fell by {self.part:.0%}, {change}, since {self.since}"


@dataclass(frozen=True, slots=True)
class Measure:
    """What a section is compared with: its ratios by name, and when they were measured."""

    when: str
    ratios: dict[str, Ratio]


Measures = Mapping[str, Measure]
"""By section."""


def falls(now: Record, before: Measures, most: float = MOST_FALL) -> list[Fall]:
    """Ratios that have become worse by more than `most`."""
    found = []
    for section, ratios in now.sections.items():
        measure = before.get(section, Measure("", {}))
        for ratio in ratios:
            if ratio.name in measure.ratios:
                old = measure.ratios[ratio.name]
                part = ratio.fall_from(old)
                if part > most:
                    found.append(Fall(section, ratio.name, old.value, ratio.value, part, measure.when))
    return found


def measures_of(record: Record) -> dict[str, Measure]:
    return {
        section: Measure(record.when, {ratio.name: ratio for ratio in ratios})
        for section, ratios in record.sections.items()
        if section not in record.fell
    }


def last_measures(folder: Path, *, quick: bool, num_cores: int) -> dict[str, Measure]:
    """Of each section the newest that can be compared."""
    found: dict[str, Measure] = {}
    for path in sorted(folder.glob("*.json")):
        record = Record.from_json(path.read_text())
        if (record.quick, record.num_cores) == (quick, num_cores):
            found |= measures_of(record)
    return found


# -- showing ----------------------------------------------------------------------------------------------------------
def section_text(title: str, ratios: Sequence[Ratio], before: Mapping[str, Ratio]) -> str:
    width = max([len(title), *(len(ratio.name) + 2 for ratio in ratios)])
    lines = [f"{title:{width}}{'ratio':>9}{'from - to':>17}{'limit':>9}{'last':>9}"]
    for ratio in ratios:
        spread = f"{ratio.low:.3f} - {ratio.high:.3f}" if ratio.high > ratio.low else ""
        limit = "" if ratio.limit is None else f"{'≥' if ratio.is_gain else '≤'} {ratio.limit:.2f}"
        last = f"{before[ratio.name].value:.3f}" if ratio.name in before else ""
        over = "" if ratio.holds else "   <-- over the limit"
        lines.append(f"  {ratio.name:{width - 2}}{ratio.value:>9.3f}{spread:>17}{limit:>9}{last:>9}{over}")
    return "\n".join(lines)


# -- running ----------------------------------------------------------------------------------------------------------
def run_section(name: str, options: argparse.Namespace) -> list[Ratio]:
    """In a process of its own; raises RuntimeError with the end of what it said if it fails."""
    with tempfile.TemporaryDirectory(prefix="bench-suite-") as folder:
        out = Path(folder) / "ratios.json"
        command = [sys.executable, "-m", "bench.suite", "--one", name, "--out", str(out)]
        command += ["--quick"] if options.quick else []
        command += ["--caffe", options.caffe] if options.caffe else []
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode or not out.exists():
            raise RuntimeError((done.stderr or done.stdout).strip()[-1500:] or f"exit code {done.returncode}")
        return [Ratio(**entry) for entry in json.loads(out.read_text())]


def run_suite(options: argparse.Namespace, before: Measures) -> Record:
    from bench.sections import sections_with

    known = sections_with(options.caffe)
    begin = time.monotonic()
    sections: dict[str, list[Ratio]] = {}
    left_out: dict[str, str] = {}
    for name in options.sections.split(",") if options.sections else known:
        if known[name].needs_root and os.geteuid() != 0:
            left_out[name] = "needs root: it emulates hosts by network namespaces"
            continue
        missing = known[name].missing()
        if missing:
            left_out[name] = missing
            continue
        began = time.monotonic()
        try:
            sections[name] = run_section(name, options)
        except RuntimeError as problem:
            left_out[name] = f"failed: {problem}"
            print(f"\n{name} failed:\n{problem}", flush=True)
            continue
        last = before[name].ratios if name in before else {}
        took = f"{name}: {known[name].about} ({time.monotonic() - began:.0f} s)"
        print(f"\n{section_text(took, sections[name], last)}", flush=True)
    import torch

    return Record(
        when=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine(),
        num_cores=len(os.sched_getaffinity(0)),
        torch=torch.__version__,
        quick=options.quick,
        seconds=round(time.monotonic() - begin, 1),
        sections=sections,
        left_out=left_out,
    )


def machine() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def conclude(record: Record, found: Sequence[Fall], num_compared: int) -> int:
    """Says what was left out, which limits do not hold and what fell; the exit code."""
    print()
    for name, why in record.left_out.items():
        print(f"left out   {name}: {why.splitlines()[-1]}")
    for contender, why in OTHERS.items():
        print(f"left out   {contender}: {why}")
    over = [(s, ratio) for s, ratios in record.sections.items() for ratio in ratios if not ratio.holds]
    for section, ratio in over:
        print(f"limit      {section}: {ratio.name} is {ratio.value:.3f}, the limit {ratio.limit:.3f}")
    for fall in found:
        print(f"fall       {fall}")
    num = sum(map(len, record.sections.values()))
    beside = f"{num_compared} compared with earlier runs, {len(found)} falls" if num_compared else "no earlier run"
    print(f"{num} ratios in {record.seconds:.0f} s, {len(over)} over their limits; {beside}")
    has_failed = any(why.startswith("failed") for why in record.left_out.values())
    return 1 if found or over or has_failed else 0


def num_compared(record: Record, before: Measures) -> int:
    """How many ratios both have."""
    return sum(
        ratio.name in before[section].ratios
        for section, ratios in record.sections.items()
        if section in before
        for ratio in ratios
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few subjects and turns: meant to take ten minutes")
    parser.add_argument("--sections", default="", help="some only, separated by commas")
    parser.add_argument("--caffe", help="BVLC Caffe's program, to be timed beside ours")
    parser.add_argument("--against", type=Path, help="compare with this record, not with the last one")
    parser.add_argument("--norecord", action="store_true", help="keep no record of this run")
    parser.add_argument("--accept", action="store_true", help="what fell is meant to: it is the new measure")
    parser.add_argument("--json", type=Path, help="also write the record here")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    from bench.sections import sections_with

    known = sections_with(options.caffe)
    if options.one:
        ratios = known[options.one].measure(options.quick)
        options.out.write_text(json.dumps([asdict(ratio) for ratio in ratios]))
        return 0
    unknown = [name for name in options.sections.split(",") if name and name not in known]
    if unknown:
        print(f"there is no section {unknown[0]!r}; sections: {', '.join(known)}", file=sys.stderr)
        return 1
    num_cores = len(os.sched_getaffinity(0))
    before = (
        measures_of(Record.from_json(options.against.read_text()))
        if options.against
        else last_measures(RECORDS, quick=options.quick, num_cores=num_cores)
    )
    record = run_suite(options, before)
    found = falls(record, before)
    if not options.accept:
        record = replace(record, fell=sorted({fall.section for fall in found}))
    if not options.norecord:
        RECORDS.mkdir(exist_ok=True)
        kind = "quick" if options.quick else "full"
        (RECORDS / f"{record.when.replace(':', '')}-{kind}.json").write_text(record.to_json())
    if options.json:
        options.json.write_text(record.to_json())
    return conclude(record, found, num_compared(record, before))


if __name__ == "__main__":
    sys.exit(main())
