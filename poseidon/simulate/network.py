"""Network: messages of collectives on their way between nodes, one by one.

A message of n bytes, from node a to node b, goes through queues:

    a's processor    o/2 + n / h          hands it over
    a's interface    n / β                one way; the other way is b's own
    uplink, downlink n / (k · β / s)      where a and b hang on different switches of k nodes, s times oversubscribed
    b's interface    n / β                bits pass through as they come: a message alone takes n / β in all
    the way          L = α − o
    b's processor    o/2 + n / h          wakes up for it

so that a message alone takes α + n / β (h, what processors handle, is infinite for hosts with cores to spare; the
payload of an all-reduce, which lands where it is summed, counts half). A node that has not started a collective yet
finds the messages of the others waiting.

Whoever comes first is served first, but at the sender's interface: there connections take turns (`interface.py`).

With one lane, one node stands for all: what it sends, it gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from poseidon.simulate.agenda import Agenda
from poseidon.simulate.interface import Interface
from poseidon.simulate.machines import Machines
from poseidon.simulate.waves import Collective, Wave

Finished = Callable[[int], None]
"""Told the node where a collective is over."""


# What a message goes through, last first: of things at the same moment, what is furthest on its way comes first.
TAKEN, ARRIVED, ENTERED, DESCENDED, CARRIED, HANDED_OVER = range(1, 7)


def order_of(number: int, index: int, stage: int) -> int:
    """The order of a message's stage among others at the same moment: by collective, wave and stage."""
    return ((number << 20) + index << 3) + stage


def connection_of(collective: Collective, wave: Wave) -> object:
    """Which of its connections a node sends a wave's message by. The engine below has its own; ours carry all our own
    collectives. Named by the way to the other node, so that all nodes call theirs alike."""
    return collective.is_own, wave.hop


class Costs:
    """What messages of a collective take besides their bytes on the wire."""

    __slots__ = ("handling_s", "overhead_s", "way_s")

    def __init__(self, machines: Machines, collective: Collective) -> None:
        latency_s, overhead_s = machines.cluster.message(is_own=collective.is_own)
        self.overhead_s = min(overhead_s, latency_s) * collective.share / 2  # at each end
        self.way_s = latency_s - 2 * self.overhead_s
        self.handling_s = 8 / machines.handling_bps * (1.0 if collective.is_own else 0.5)  # a byte, at each end


class Run:
    """A collective under way: by node, what it still waits for."""

    __slots__ = (
        "collective",
        "costs",
        "early",
        "finished",
        "is_joined",
        "left",
        "missing",
        "number",
        "out_s",
        "reached",
    )

    def __init__(self, number: int, collective: Collective, costs: Costs, num_lanes: int, finished: Finished) -> None:
        self.number, self.collective, self.costs, self.finished = number, collective, costs, finished
        self.is_joined = [False] * num_lanes
        self.early: list[list[tuple[int, float]]] = [[] for _ in range(num_lanes)]  # came before it had joined
        self.missing = [list(group[:num_lanes]) for group in collective.expected]
        self.left = [collective.num_messages(lane) for lane in range(num_lanes)]
        self.reached = [0] * num_lanes  # groups that are in, where they are looked at in order
        self.out_s = [0.0] * num_lanes  # when the last message so far has left


@dataclass(slots=True)
class Letter:
    """A message between two interfaces. `end_s`: when its last bit has left what it has passed so far."""

    run: Run
    index: int
    to: int
    num_bytes: float
    end_s: float


class Network:
    """The queues of all nodes."""

    def __init__(self, machines: Machines, agenda: Agenda, num_lanes: int) -> None:
        self._machines, self._agenda, self._num_lanes = machines, agenda, num_lanes
        self._second_per_byte = 8 / machines.cluster.bandwidth_bps
        self._hands_free_s = [0.0] * num_lanes
        self._out = [Interface(agenda, partial(self._carry, node)) for node in range(num_lanes)]
        self._in_free_s = [0.0] * num_lanes
        num_switches = machines.num_switches
        self._up_free_s = [0.0] * num_switches
        self._down_free_s = [0.0] * num_switches
        self._has_uplinks = num_lanes > 1 and num_switches > 1
        self._uplink_second_per_byte = 8 / machines.uplink_bps
        self._num_runs = 0
        self.bytes_sent = [0.0] * num_lanes
        self.bytes_received = [0.0] * num_lanes

    def begin(self, collective: Collective, finished: Finished) -> Run:
        """A collective that nodes will join."""
        self._num_runs += 1
        return Run(self._num_runs, collective, Costs(self._machines, collective), self._num_lanes, finished)

    def join(self, run: Run, node: int) -> None:
        """The node starts now."""
        run.is_joined[node] = True
        self._release(run, None, node)
        self._release_what_is_in(run, node)
        for index, num_bytes in run.early[node]:
            self._receive(run, index, node, num_bytes)

    def handle(self, node: int, num_bytes: float, call: Callable[[], None]) -> None:
        """The node's processor goes through so many bytes, then calls."""
        self._work(node, num_bytes * 8 / self._machines.handling_bps, 0, call)

    def _work(self, node: int, seconds: float, order: int, call: Callable[..., None], *arguments: object) -> None:
        if not seconds:
            call(*arguments)
            return
        self._hands_free_s[node] = max(self._agenda.now_s, self._hands_free_s[node]) + seconds
        self._agenda.at(self._hands_free_s[node], call, *arguments, order=order)

    # -- a message's way --------------------------------------------------------------------------------------------
    def _release(self, run: Run, group: int | None, node: int) -> None:
        """What may be sent now goes to the processor."""
        collective, costs = run.collective, run.costs
        for index in collective.released.get(group, ()):
            wave = collective.waves[index]
            if wave.to(node, collective.num_nodes) is not None:
                seconds = costs.overhead_s * wave.width + wave.bytes_of(node) * costs.handling_s
                self._work(node, seconds, order_of(run.number, index, HANDED_OVER), self._send, run, index, node)

    def _send(self, run: Run, index: int, node: int) -> None:
        """The interface takes it when its turn comes."""
        wave = run.collective.waves[index]
        num_bytes = wave.bytes_of(node)
        self.bytes_sent[node] += num_bytes
        order = order_of(run.number, index, CARRIED)
        self._out[node].put(connection_of(run.collective, wave), num_bytes, (run, index), order)

    def _carry(self, node: int, message: tuple[Run, int]) -> float:
        """On the wire, and through the switches, to the other node's interface; tells when the node's own is free."""
        run, index = message
        wave = run.collective.waves[index]
        num_bytes = wave.bytes_of(node)
        target = wave.to(node, run.collective.num_nodes)
        assert target is not None, "what is on the wire goes somewhere"
        to = target if self._num_lanes > 1 else 0
        now_s = self._agenda.now_s
        run.out_s[node] = now_s + num_bytes * self._second_per_byte
        self.bytes_received[to] += num_bytes
        letter = Letter(run, index, to, num_bytes, run.out_s[node])
        source, target_switch = self._machines.switch_of(node), self._machines.switch_of(to)
        if self._has_uplinks and source != target_switch:
            self._pass(self._up_free_s, source, partial(self._descend, target_switch), letter)
        else:
            self._enter(letter)
        self._settle(run, node)
        return run.out_s[node]

    def _pass(self, free_s: list[float], switch: int, then: Callable[[Letter], None], letter: Letter) -> None:
        """Takes a switch's link in one direction, and goes on when its first bits are through."""
        now_s, link_s = self._agenda.now_s, letter.num_bytes * self._uplink_second_per_byte
        start_s = max(now_s, free_s[switch])
        free_s[switch] = start_s + link_s
        letter.end_s = max(letter.end_s, start_s + link_s)
        if start_s > now_s:
            order = order_of(letter.run.number, letter.index, DESCENDED if free_s is self._up_free_s else ENTERED)
            self._agenda.at(start_s, then, letter, order=order)
        else:
            then(letter)

    def _descend(self, switch: int, letter: Letter) -> None:
        self._pass(self._down_free_s, switch, self._enter, letter)

    def _enter(self, letter: Letter) -> None:
        """Through the receiver's interface; the last bit is in no sooner than it has left what was before."""
        wire_s = letter.num_bytes * self._second_per_byte
        to, run = letter.to, letter.run
        end_s = max(letter.end_s, max(self._agenda.now_s, self._in_free_s[to]) + wire_s)
        self._in_free_s[to] = end_s
        way_s = run.costs.way_s * run.collective.waves[letter.index].width
        order = order_of(run.number, letter.index, ARRIVED)
        self._agenda.at(end_s + way_s, self._arrive, run, letter.index, to, letter.num_bytes, order=order)

    def _arrive(self, run: Run, index: int, node: int, num_bytes: float) -> None:
        if run.is_joined[node]:
            self._receive(run, index, node, num_bytes)
        else:
            run.early[node].append((index, num_bytes))

    def _receive(self, run: Run, index: int, node: int, num_bytes: float) -> None:
        """The processor wakes up for it."""
        wave, costs = run.collective.waves[index], run.costs
        seconds = costs.overhead_s * wave.width + num_bytes * costs.handling_s
        self._work(node, seconds, order_of(run.number, index, TAKEN), self._take, run, wave.group, node)

    def _take(self, run: Run, group: int, node: int) -> None:
        run.missing[group][node] -= 1
        if run.collective.in_order:
            self._release_what_is_in(run, node)
        elif run.missing[group][node] == 0:
            self._release(run, group, node)
        self._settle(run, node)

    def _release_what_is_in(self, run: Run, node: int) -> None:
        """Group by group, as long as nothing is missing. Of some groups nothing comes to a node."""
        while run.collective.in_order and run.reached[node] < len(run.missing):
            if run.missing[run.reached[node]][node]:
                return
            run.reached[node] += 1
            self._release(run, run.reached[node] - 1, node)

    def _settle(self, run: Run, node: int) -> None:
        """One thing less that the node waits for."""
        run.left[node] -= 1
        if run.left[node] == 0:
            over_s = max(run.out_s[node], self._agenda.now_s)
            self._agenda.at(over_s, run.finished, node, order=order_of(run.number, 0, 0))
