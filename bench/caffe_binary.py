"""Forward + backward of our nets beside a BVLC Caffe that somebody has built: `caffe time` on the same prototxt.

    python -m bench.caffe_binary PATH/TO/caffe [--nets lenet,alexnet] [--turns 3]

Both take turns, one thread each; Caffe's figure is the `Average Forward-Backward` it prints, ours the mean of as many
passes. Ratios are ours / Caffe's.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench.net import SUBJECTS, our_pass
from bench.ratio import Ratio, of_turns
from models.generate import bench_text

_TOLD = re.compile(r"Average Forward-Backward: ([\d.]+) ms")
ITERATIONS = {"lenet": 50, "cifar10_quick": 20, "alexnet": 5, "googlenet": 3, "resnet50": 2}


def caffe_ms(binary: str, net: Path, iterations: int) -> float:
    command = [binary, "time", f"--model={net}", f"--iterations={iterations}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    told = _TOLD.search(done.stdout + done.stderr)
    if done.returncode or told is None:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode} and told no time:\n{done.stderr[-1000:]}")
    return float(told[1])


def measure(binary: str, name: str, turns: int) -> Ratio:
    torch.set_num_threads(1)
    batch, iterations = SUBJECTS[name].batch, ITERATIONS[name]
    _, run = our_pass(name, batch)
    run()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        net = Path(folder, "net.prototxt")
        net.write_text(bench_text(name, batch))
        for _ in range(turns):
            begin = time.perf_counter()
            for _ in range(iterations):
                run()
            ours_ms = (time.perf_counter() - begin) / iterations * 1e3
            found.append(ours_ms / caffe_ms(binary, net, iterations))
    return of_turns(f"{name}, batch {batch}: time / BVLC Caffe's", found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--nets", default="lenet,alexnet")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    for name in options.nets.split(","):
        ratio = measure(options.binary, name, options.turns)
        print(f"{ratio.name:50}{ratio.value:8.3f} ({ratio.low:.3f} - {ratio.high:.3f})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
