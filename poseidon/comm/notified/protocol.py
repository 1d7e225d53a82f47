"""The protocol of notified puts, as pure state machines: no memory, no network, no clocks. Everything that can go wrong
with order is decided here, and checked by trying all orders (tests/comm/notified/test_protocol.py).

A *flow* carries one run of elements up and down a tree of workers (plan/flows.py). Its version counts updates. At every
worker, from version v to v+1:

    GATHERING   own gradient and the children's sums come in, in any order; each is a put into a slot of its own
    SUMMING     all are here: the worker adds them up. The root then applies the rule
    WAITING     (not at the root) the sum was put into the parent's slot; new values are awaited
    → GATHERING with version v+1: values are in the parameter's memory, and were put into the children's

Notifications carry the version that they help to make. What makes it safe to write into others' memory without asking:

    values v+1 go into a child's parameters when its sum for v+1 has come, which says: I, and all below me, have read
    values v for the last time. The sum is the acknowledgement
    a sum for v+2 goes into the parent's slot when values v+1 have come from it, which says: the slot was read

So nobody waits but for what he needs, there is no barrier and no message more. Notifications that come late or twice
are older than what is expected, and are dropped; one that is newer cannot be, and is an error.

A *gathering* brings blocks of all workers to all (factors). Nobody tells the others that their blocks were read, so
there are two slots for each, used in turn: who has everybody's blocks of v+1 knows that all have read those of v.

Versions are numbers from 1 on that wrap around (`next_value`); whose turn it is of the two slots does not depend on it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from poseidon.errors import TransportError
from poseidon.transport.onesided.base import is_newer, next_value


class Stage(enum.Enum):
    GATHERING = "gathering"
    SUMMING = "summing"
    WAITING = "waiting"


class Act(enum.Enum):
    """What the worker has to do now, as answer to an event."""

    NOTHING = "nothing"
    SUM = "sum"  # add own gradient and the children's; then `summed`
    PASS_ON = "pass on"  # new values are here: put them into the children's memory


class Node(NamedTuple):
    """One worker's place in a flow. `version` is that of the values in its memory."""

    parent: int | None
    children: tuple[int, ...]
    version: int
    stage: Stage = Stage.GATHERING
    has_own: bool = False
    arrived: frozenset[int] = frozenset()

    @property
    def coming(self) -> int:
        """The version that is being made."""
        return next_value(self.version)


def offered(node: Node) -> tuple[Node, Act]:
    """This worker's own gradient is there, for the version that is coming."""
    if node.has_own or node.stage is not Stage.GATHERING:
        raise TransportError(f"a gradient was offered twice for version {node.coming}")
    return _perhaps_complete(node._replace(has_own=True))


def sum_arrived(node: Node, child: int, version: int) -> tuple[Node, Act]:
    """A child's sum has been put into its slot."""
    if version != node.coming:
        return _dropped(node, f"rank {child}'s gradient", version), Act.NOTHING
    if child in node.arrived or node.stage is not Stage.GATHERING:
        return node, Act.NOTHING  # the same one again
    return _perhaps_complete(node._replace(arrived=node.arrived | {child}))


def summed(node: Node) -> Node:
    """The sum is made; away from the root it is on its way to the parent."""
    assert node.stage is Stage.SUMMING
    if node.parent is not None:
        return node._replace(stage=Stage.WAITING)
    return node


def applied(node: Node) -> Node:
    """At the root: values of the version that was coming are in memory, to be put into the children's."""
    assert node.stage is Stage.SUMMING
    assert node.parent is None
    return _advanced(node)


def values_arrived(node: Node, version: int) -> tuple[Node, Act]:
    """The parent has put values into this worker's memory."""
    if version != node.coming:
        return _dropped(node, "values", version), Act.NOTHING
    if node.stage is not Stage.WAITING:
        raise TransportError(f"values of version {version} came before this worker's sum for them was sent")
    return _advanced(node), Act.PASS_ON


def _perhaps_complete(node: Node) -> tuple[Node, Act]:
    if node.has_own and len(node.arrived) == len(node.children):
        return node._replace(stage=Stage.SUMMING), Act.SUM
    return node, Act.NOTHING


def _advanced(node: Node) -> Node:
    return Node(node.parent, node.children, node.coming)


def _dropped(node: Node, what: str, version: int) -> Node:
    """The node as it is, if a notification is merely late."""
    if is_newer(version, node.coming):
        raise TransportError(f"{what} of version {version} came while version {node.coming} was still being made")
    return node


# -- gatherings -------------------------------------------------------------------------------------------------------
class Gathering(NamedTuple):
    """One worker's view of a gathering: what has come of this version, and already of the next."""

    others: frozenset[int]
    version: int
    turn: int = 0  # which of the two slots the coming version uses
    has_own: bool = False
    arrived: frozenset[int] = frozenset()
    early: frozenset[int] = frozenset()

    @property
    def coming(self) -> int:
        return next_value(self.version)

    @property
    def is_complete(self) -> bool:
        return self.has_own and self.arrived == self.others


def own_block(gathering: Gathering) -> Gathering:
    """This worker's block is there, and on its way to all others."""
    if gathering.has_own:
        raise TransportError(f"a block was offered twice for version {gathering.coming}")
    return gathering._replace(has_own=True)


def block_arrived(gathering: Gathering, source: int, version: int) -> Gathering:
    if version == gathering.coming:
        return gathering._replace(arrived=gathering.arrived | {source})
    if version == next_value(gathering.coming):
        return gathering._replace(early=gathering.early | {source})
    if is_newer(version, gathering.coming):
        raise TransportError(
            f"rank {source}'s block of version {version} came while version {gathering.coming} was still being gathered"
        )
    return gathering


def block_read(gathering: Gathering) -> Gathering:
    """All blocks of the coming version have been used."""
    assert gathering.is_complete
    return Gathering(gathering.others, gathering.coming, 1 - gathering.turn, arrived=gathering.early)
