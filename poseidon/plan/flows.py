"""Flows: the ways of gradients and new values under the pattern `gpi`: trees of workers, one per run of elements.

Gradients go up a tree, summed on the way; at the root the rule is applied; values go down the same tree. All workers
derive the same trees from the plan.

    SERVER   every worker is the root of its shard of a Send, and everybody else its child: one step each way, the load
             spread evenly. For what is large: bytes count
    TREE     one tree for a whole Send, k-ary; the root is the worker that has least to do so far, so that the work
             goes round. For what is small: messages count, and a worker sends one or two, not P−1

k is what makes k × levels least (k messages one after another on each level): 3 for 4 workers, 3 for 8, 4 for 16.
"""

from __future__ import annotations

from dataclasses import dataclass

from poseidon.plan.commplan import CommPlan, Scheme, Send
from poseidon.plan.trees import tree_arity


@dataclass(frozen=True, slots=True)
class Flow:
    """Elements [start, stop) of a unit, and the tree they take. `send` is the Send they belong to."""

    index: int
    send: Send
    start: int
    stop: int
    root: int
    arity: int
    num_workers: int

    def parent(self, rank: int) -> int | None:
        """None for the root."""
        place = (rank - self.root) % self.num_workers
        return None if place == 0 else ((place - 1) // self.arity + self.root) % self.num_workers

    def children(self, rank: int) -> tuple[int, ...]:
        """In the order in which they are summed."""
        first = (rank - self.root) % self.num_workers * self.arity + 1
        places = range(first, min(first + self.arity, self.num_workers))
        return tuple((place + self.root) % self.num_workers for place in places)


def flows_of(plan: CommPlan) -> tuple[Flow, ...]:
    """The trees of all dense units, in the order of their Sends."""
    size = plan.cluster.num_workers
    flows: list[Flow] = []
    elems_of = [0] * size
    for send in plan.order:
        scheme = plan.units[send.unit].scheme
        if scheme is Scheme.TREE:
            root = min(range(size), key=lambda rank: (elems_of[rank], rank))
            elems_of[root] += send.stop - send.start
            flows.append(Flow(len(flows), send, send.start, send.stop, root, tree_arity(size), size))
        elif scheme is Scheme.SERVER:
            for owner in range(size):
                start, stop = shard(send.start, send.stop, owner, size)
                if start < stop:
                    flows.append(Flow(len(flows), send, start, stop, owner, size - 1, size))
    return tuple(flows)


def shard(start: int, stop: int, owner: int, num_owners: int) -> tuple[int, int]:
    """Where an owner's shard of [start, stop) begins and ends; the first ones are longer by one if it must be."""
    length, longer = divmod(stop - start, num_owners)
    first = start + owner * length + min(owner, longer)
    return first, first + length + (owner < longer)
