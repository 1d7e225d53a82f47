"""Ratings factorised on several workers, with poseidon.Table: no net, no gradients of PyTorch.

    torchrun --nproc-per-node 4 examples/matrix_factorisation/train.py
    python examples/matrix_factorisation/train.py                          # one worker, for comparison

A matrix of ratings (users × items, of which few are known) is approximated by U Vᵀ, by stochastic gradient descent over
the known ratings, of which each worker has its share. Rows of U and V are rows of two tables: a worker asks for those
that its next ratings need, adds what it has computed, and goes on, although others may be some clocks behind
(`--staleness`). The ratings are made here, from factors that are then forgotten, so nothing has to be downloaded; what
is left in the end is the noise that was put on them.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

import poseidon

RANK = 8
NOISE = 0.1


def ratings(num_users: int, num_items: int, num_known: int) -> tuple[Tensor, Tensor, Tensor]:
    """Users, items and what they think of them; the same on every worker."""
    draw = torch.Generator().manual_seed(1)
    users = torch.randint(num_users, (num_known,), generator=draw)
    items = torch.randint(num_items, (num_known,), generator=draw)
    u = torch.randn(num_users, RANK, generator=draw) / RANK**0.5
    v = torch.randn(num_items, RANK, generator=draw)
    return users, items, (u[users] * v[items]).sum(1) + NOISE * torch.randn(num_known, generator=draw)


def steps(u: Tensor, v: Tensor, known: Tensor, rate: float) -> tuple[Tensor, Tensor, float]:
    """What one step of descent adds to the factors of each rating, and the sum of squared errors before it."""
    errors = known - (u * v).sum(1)
    return rate * errors[:, None] * v, rate * errors[:, None] * u, float(errors.square().sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--known", type=int, default=100_000, help="ratings")
    parser.add_argument("--sweeps", type=int, default=12, help="over all ratings")
    parser.add_argument("--batch", type=int, default=2000, help="ratings of all workers between two clocks")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--consistency", default="ssp-push", help="ssp, ssp-push or ssp-managed")
    options = parser.parse_args()
    torch.set_num_threads(1)

    users, items, known = ratings(options.users, options.items, options.known)
    draw = torch.Generator().manual_seed(2)
    with poseidon.Tables() as tables:
        shared = {"width": RANK, "staleness": options.staleness, "consistency": options.consistency, "sparse": True}
        left = tables.create(
            "users", rows=options.users, start=torch.randn(options.users, RANK, generator=draw), **shared
        )
        right = tables.create(
            "items", rows=options.items, start=torch.randn(options.items, RANK, generator=draw), **shared
        )
        # Each worker sums its own errors in its own row; with staleness 0 everybody reads the total of a sweep.
        errors = tables.create("errors", rows=tables.num_workers, width=1, dtype=torch.float64)
        counted = 0.0
        for sweep in range(options.sweeps):
            order = torch.randperm(options.known, generator=torch.Generator().manual_seed(sweep))
            total = 0.0
            for batch in order.split(options.batch):
                mine = batch[tables.rank :: tables.num_workers]
                u, v = left.get(users[mine]), right.get(items[mine])
                du, dv, squares = steps(u, v, known[mine], options.rate)
                left.inc(du, users[mine])
                right.inc(dv, items[mine])
                left.clock()
                right.clock()
                total += squares
            errors.inc(torch.tensor([[total]], dtype=torch.float64), [tables.rank])
            errors.clock()
            so_far = float(errors.get().sum())
            if tables.rank == 0:
                root = ((so_far - counted) / options.known) ** 0.5
                print(f"sweep {sweep + 1}: root mean square error {root:.4f}", flush=True)
            counted = so_far


if __name__ == "__main__":
    main()
