#!/usr/bin/env python
"""Feeds damaged and hostile input to everything that reads files, guided by coverage (atheris, libFuzzer).

    python tools/fuzz.py --seconds 60                      every target in turn, a minute each
    python tools/fuzz.py --seconds 600 --target weights    one target
    python tools/fuzz.py --target weights --input FILE     once more with what has failed

What targets are and what may come out of them: tests/fuzz/targets.py. An input that fails is kept in the folder .fuzz.
Needs `pip install -e .[fuzz]`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".fuzz"
# A single input that takes this long hangs; one that makes the process this large asks for memory without end.
HANG_S = 20
MOST_MIB = 3000


def main() -> int:
    parser = argparse.ArgumentParser(description="Feed damaged and hostile input to everything that reads files.")
    parser.add_argument("--seconds", type=int, default=60, help="how long, per target (default: 60)")
    parser.add_argument("--target", help="only this one")
    parser.add_argument("--input", type=Path, metavar="FILE", help="only this input")
    parser.add_argument("--seed", type=int, default=0, help="the same inputs again; 0: others every time (default)")
    parser.add_argument("--jobs", type=int, default=1, help="how many targets at once (default: 1)")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # this process is the one that fuzzes
    found = parser.parse_args()
    if found.inside is not None:
        fuzz(found.target, found.inside, {"max_total_time": found.seconds, "seed": found.seed})
    names = target_names()
    if found.target is not None and found.target not in names:
        parser.error(f"there is no target {found.target!r}; targets: {', '.join(names)}")
    chosen = [found.target] if found.target else names
    if found.input is not None:
        return feed_once(chosen[0], found.input)
    KEPT.mkdir(exist_ok=True)
    with ThreadPoolExecutor(found.jobs) as pool:
        results = list(pool.map(lambda name: run_apart(name, found), chosen))
    return 0 if all(results) else 1


def target_names() -> list[str]:
    sys.path.insert(0, str(ROOT))
    from tests.fuzz.targets import make_targets

    with tempfile.TemporaryDirectory() as folder:
        return list(make_targets(Path(folder)))


def feed_once(name: str, path: Path) -> int:
    """Feeds one input, with the traceback if it fails."""
    from tests.fuzz.targets import is_refused, make_targets

    with tempfile.TemporaryDirectory() as folder:
        refused = is_refused(make_targets(Path(folder))[name], path.read_bytes())
    print(f"{name}: {path} was {'refused' if refused else 'taken'}")
    return 0


def run_apart(name: str, found: argparse.Namespace) -> bool:
    """Fuzzes one target in a process of its own, which a crash may end; prints one line."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--target", name, "--seconds", str(found.seconds), "--seed", str(found.seed), "--inside", folder]
        words = [sys.executable, __file__, *options]
        ran = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, cwd=ROOT)
    stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", ran.stderr))
    counts = (
        f"{int(stats.get('number_of_executed_units', 0)):>9,} inputs, {stats.get('peak_rss_mb', '?'):>5} MB at most"
    )
    if ran.returncode == 0 and stats:
        print(f"{name:14} {counts}", flush=True)
        return True
    log = KEPT / f"{name}.log"
    log.write_text(ran.stdout + ran.stderr)
    print(f"{name:14} {counts}: FAILED with code {ran.returncode}; see {log} and the inputs beside it", flush=True)
    return False


def fuzz(name: str, folder: Path, limits: dict[str, int]) -> None:
    """Fuzzes in this process; never returns. `limits` are options of libFuzzer's."""
    sys.path.insert(0, str(ROOT))
    try:
        import atheris
    except ImportError:
        sys.exit("fuzzing needs atheris: pip install -e .[fuzz]")
    with atheris.instrument_imports(include=["poseidon"]):
        from tests.fuzz.targets import is_refused, make_targets
    import torch

    torch.set_num_threads(1)
    target = make_targets(folder)[name]
    corpus = folder / "corpus"
    corpus.mkdir()
    for index, seed in enumerate(target.seeds):
        (corpus / f"seed{index}").write_bytes(seed)
    options = {
        **limits,
        "timeout": HANG_S,
        "rss_limit_mb": MOST_MIB,
        "artifact_prefix": f"{KEPT}/{name}-",
        "print_final_stats": 1,
        "max_len": max(4096, *(2 * len(seed) for seed in target.seeds)) if target.seeds else 64,
        "verbosity": 0,
    }
    words = [sys.argv[0], *(f"-{option}={value}" for option, value in options.items()), str(corpus)]
    atheris.Setup(words, lambda data: is_refused(target, data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
