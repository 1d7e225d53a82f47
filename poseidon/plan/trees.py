"""k-ary trees of workers: how many children each has, and how deep that goes."""

from __future__ import annotations


def tree_arity(num_workers: int) -> int:
    """The k with the least k × levels; of equal ones the one with fewer levels."""
    return min(range(1, max(num_workers, 2)), key=lambda k: (k * tree_levels(num_workers, k), -k))


def tree_levels(num_workers: int, arity: int) -> int:
    """Steps from the root to the leaves furthest from it."""
    levels, reached, width = 0, 1, 1
    while reached < num_workers:
        width *= arity
        reached += width
        levels += 1
    return levels
