"""pycaffe's module-wide settings, for the nets and solvers built after a call: seed, device, and who is who.

Nets made through `caffe` compute on the CPU: their arrays are the tensors' memory, which NumPy can only share there.
`set_mode_gpu` says so once and changes nothing; `poseidon train --gpu` trains the same files on GPUs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from poseidon.net.draws import key_of


@dataclass(slots=True)
class _Settings:
    seed: int | None = None
    num_seeded: int = 0
    solver_count: int = 1
    solver_rank: int = 0
    told_about_gpu: bool = False


_settings = _Settings()


def set_random_seed(seed: int) -> None:
    """Makes what is built afterwards repeatable: the first net or solver, the second, ... each with its own draws."""
    _settings.seed, _settings.num_seeded = int(seed), 0


def next_seed() -> int | None:
    """The seed of the next net or solver; None: a fresh one."""
    if _settings.seed is None:
        return None
    _settings.num_seeded += 1
    return key_of(_settings.seed, "caffe", _settings.num_seeded)


def set_mode_cpu() -> None:
    """How it is."""


def set_mode_gpu() -> None:
    """Warns once that nets made through `caffe` compute on the CPU."""
    if not _settings.told_about_gpu:
        _settings.told_about_gpu = True
        warnings.warn(
            "caffe.set_mode_gpu: nets made through `import caffe` compute on the CPU; "
            "`poseidon train --gpu` trains on GPUs",
            stacklevel=2,
        )


def set_device(device: int) -> None:
    """Takes the number of a GPU and, like set_mode_gpu, changes nothing."""
    if int(device) < 0:
        raise ValueError(f"a device is a number from 0 on, got {device}")


def set_solver_count(count: int) -> None:
    """For scripts that ask again with `solver_count`; workers are started by `poseidon train --workers`."""
    _settings.solver_count = int(count)


def solver_count() -> int:
    return _settings.solver_count


def set_solver_rank(rank: int) -> None:
    """For scripts that ask again with `solver_rank`."""
    _settings.solver_rank = int(rank)


def solver_rank() -> int:
    return _settings.solver_rank


def set_multiprocess(_: bool) -> None:
    """Caffe's threads or processes: there is one process per worker here, so both mean the same."""
