"""Which device computes: `--gpu`, and a solver's own solver_mode."""

from __future__ import annotations

import torch

from poseidon.cli.command import listed
from poseidon.errors import UsageError
from poseidon.run.rendezvous import Place
from poseidon.spec import caffe_pb2


def gpu_ids(text: str) -> list[int]:
    """The GPUs a `--gpu` flag names: `all`, or numbers separated by commas."""
    num_gpus = torch.cuda.device_count()
    if text == "all":
        if not num_gpus:
            raise UsageError("--gpu=all: this machine has no GPU that PyTorch can use; leave --gpu out for the CPU")
        return list(range(num_gpus))
    ids = []
    for word in listed(text):
        if not (word.isascii() and word.isdecimal()):
            raise UsageError(f"--gpu takes `all` or numbers separated by commas, got {text!r}")
        if int(word) >= num_gpus:
            known = f"PyTorch sees {num_gpus}, numbered from 0" if num_gpus else "PyTorch sees none here"
            raise UsageError(f"--gpu={text}: there is no GPU {word}; {known}; leave --gpu out for the CPU")
        ids.append(int(word))
    return ids


def device_for(gpu: str) -> torch.device:
    """The one device a command computes on."""
    ids = gpu_ids(gpu)
    if len(ids) > 1:
        raise UsageError(f"--gpu={gpu}: one process computes on one device, got {len(ids)}; name one of them")
    return torch.device("cuda", ids[0]) if ids else torch.device("cpu")


def solver_device(param: caffe_pb2.SolverParameter, gpu: str) -> torch.device:
    """The flag wins; then the solver's mode. Caffe's mode is GPU unless said otherwise: taken where there is one."""
    if gpu:
        return device_for(gpu)
    if param.solver_mode == caffe_pb2.SolverParameter.GPU and torch.cuda.is_available():
        return device_for(str(param.device_id))
    return torch.device("cpu")


def worker_device(param: caffe_pb2.SolverParameter, gpu: str, place: Place) -> torch.device:
    """The device of one of several workers: those of a host take the GPUs that are named, or all, one each."""
    takes_gpus = param.solver_mode == caffe_pb2.SolverParameter.GPU and torch.cuda.is_available()
    ids = gpu_ids(gpu) if gpu else gpu_ids("all") if takes_gpus else []
    if not ids:
        return torch.device("cpu")
    if torch.cuda.device_count() == 1:  # Slurm may show each task its own GPU only
        return torch.device("cuda", ids[0])
    if place.local_rank is None:
        raise UsageError("which GPU is whose? Set LOCAL_RANK to 0, 1, … for the workers of a host, as torchrun does")
    if place.local_rank >= len(ids):
        raise UsageError(
            f"{len(ids)} GPU(s) for {place.local_size or place.local_rank + 1} workers of this host: one worker "
            "computes on one device; start fewer workers, or name more GPUs"
        )
    return torch.device("cuda", ids[place.local_rank])


def device_text(device: torch.device) -> str:
    """The device for people."""
    return "the CPU" if device.type == "cpu" else f"GPU {device.index} ({torch.cuda.get_device_name(device)})"
