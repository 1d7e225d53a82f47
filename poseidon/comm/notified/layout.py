"""Layout: what lies where in the workers' segments, and which notification means what. Derived from plan and net alone,
so that everybody knows everybody's.

    segment VALUES   the parameters themselves, at the same place on every worker: a unit's members one behind the
                     other, so that any run of a unit's elements is one put
    segment SLOTS    what comes in. At a worker: for each flow and child, that child's sum; for each gathering and other
                     worker, two blocks

    id               for each (flow, sender) and each (gathering, sender, turn) a number; senders are all ranks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poseidon.plan import Flow

VALUES, SLOTS = 0, 1
ALIGN_BYTES = 64
WAKE_ID = 0


@dataclass(frozen=True, slots=True)
class Block:
    """A gathering of unit `unit`: every worker's block has `num_bytes`."""

    unit: int
    num_bytes: int


class Layout:
    """`elem_bytes`: of each unit's elements. `unit_elems`: how many each unit has; those that gather may have none."""

    def __init__(
        self, flows: Sequence[Flow], blocks: Sequence[Block], elem_bytes: Sequence[int], unit_elems: Sequence[int]
    ) -> None:
        self.flows, self.blocks = flows, blocks
        self._elem_bytes = elem_bytes
        self.value_offsets: list[int] = []
        self.value_bytes = 0
        for width, count in zip(elem_bytes, unit_elems, strict=True):
            self.value_offsets.append(self.value_bytes)
            self.value_bytes += _aligned(width * count)

    def flow_bytes(self, flow: Flow) -> int:
        return (flow.stop - flow.start) * self._elem_bytes[flow.send.unit]

    def value_offset(self, flow: Flow) -> int:
        """Where a flow's elements lie in VALUES."""
        unit = flow.send.unit
        return self.value_offsets[unit] + flow.start * self._elem_bytes[unit]

    def slots(self, rank: int, size: int) -> Slots:
        """What worker `rank` has in SLOTS."""
        sums: dict[tuple[int, int], int] = {}
        blocks: dict[tuple[int, int, int], int] = {}
        offset = 0
        for flow in self.flows:
            for child in flow.children(rank):
                sums[flow.index, child] = offset
                offset += _aligned(self.flow_bytes(flow))
        for block in self.blocks:
            for source in range(size):
                for turn in (0, 1):
                    if source != rank:
                        blocks[block.unit, source, turn] = offset
                        offset += _aligned(block.num_bytes)
        return Slots(sums, blocks, offset)


@dataclass(frozen=True, slots=True)
class Slots:
    """Offsets in one worker's SLOTS: of sums by (flow, child), of blocks by (unit, source, turn)."""

    sums: dict[tuple[int, int], int]
    blocks: dict[tuple[int, int, int], int]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Ids:
    """Numbers of notifications. Values go down where sums go up, so a flow and a sender tell which it is."""

    num_workers: int
    num_flows: int
    num_units: int

    @property
    def all(self) -> range:
        return range(1 + (self.num_flows + 2 * self.num_units) * self.num_workers)

    def flow(self, flow: int, sender: int) -> int:
        return 1 + flow * self.num_workers + sender

    def block(self, unit: int, turn: int, sender: int) -> int:
        return 1 + (self.num_flows + 2 * unit + turn) * self.num_workers + sender

    def meaning(self, id: int) -> tuple[int, int]:
        """(flow, sender), or (num_flows + unit, sender) for blocks."""
        place, sender = divmod(id - 1, self.num_workers)
        if place < self.num_flows:
            return place, sender
        return self.num_flows + (place - self.num_flows) // 2, sender


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES
