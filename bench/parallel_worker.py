"""One worker of one contender of bench/parallel.py; rank 0 prints its figures as a line of JSON."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import poseidon
from bench.netlab import sent_bytes
from bench.parallel_subjects import SUBJECTS, pace

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of the C library's malloc
WARM_UP = 8  # ours measures and plans in the first five


def keep_memory() -> None:
    """Gradients lie where those of the iteration before did, as on a GPU: filling fresh pages each time took the
    hosts longer than the paced GPU computes, between two exchanges."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def build(contender: str, model: nn.Module) -> tuple[nn.Module, Any]:
    if contender.startswith("ours"):
        parallel = poseidon.Parallel(model, broadcast_buffers=True)
        optimizer: Any = torch.optim.SGD(parallel.parameters(), 0.1)
        return parallel, poseidon.overlap(optimizer, parallel) if contender == "ours" else optimizer
    # PowerSGD's hook starts its second all-reduce from a callback: with several buckets ranks do so in different order,
    # which gloo does not survive. So it gets one bucket.
    ddp = DistributedDataParallel(model, bucket_cap_mb=10_000 if contender == "ddp-powersgd" else None)
    if contender == "ddp-fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if contender == "ddp-powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp, torch.optim.SGD(ddp.parameters(), 0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", required=True)
    parser.add_argument("--subject", choices=SUBJECTS, required=True)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--gpu-tflops", type=float, required=True)
    options = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    sys.setswitchinterval(0.0005)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    subject = SUBJECTS[options.subject]
    pace(options.gpu_tflops * 1e12)
    model, optimizer = build(options.contender, subject.build(options.contender == "ddp-sparse"))
    draw = np.random.default_rng(rank)
    seconds, sent = [], []
    for _ in range(WARM_UP + options.iterations):
        sent.append(sent_bytes())
        inputs = subject.inputs(draw)
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(*inputs).sum().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    sent.append(sent_bytes())
    if isinstance(model, poseidon.Parallel):
        poseidon.wait(model)
        if rank == 0:
            print(model.plan, file=sys.stderr)
    facts = {
        "median_s": statistics.median(seconds[WARM_UP:]),
        "sent_bytes": (sent[-1] - sent[WARM_UP]) / options.iterations,
        "all_s": [round(s, 4) for s in seconds],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    dist.barrier()
    if isinstance(model, poseidon.Parallel):
        model.close()
    if rank == 0:
        print(json.dumps(facts), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
