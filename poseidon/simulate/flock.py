"""Flock: the network of many nodes that are not alike, a wave of all nodes at a time.

The same queues and the same costs as in `network.py`, held as arrays with an entry for every node: a step of an
all-reduce among a thousand nodes is a few operations on arrays instead of a thousand messages. What a wave needs of all
nodes is known when the last of them has started the collective; nothing at any node depends on it before, since no
collective is over anywhere until everybody has taken part. Waves are served in the order of their earliest message, and
take turns when the first of the interfaces is free. That is the order of the single messages unless nodes are further
apart in time than waves are: then a message may be served before another one whose turn it was, which moves single
messages and not what a link carries in all (tests/simulate/test_play.py holds both against each other).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from poseidon.simulate.agenda import Agenda
from poseidon.simulate.interface import Interface
from poseidon.simulate.machines import Machines
from poseidon.simulate.network import ARRIVED, CARRIED, HANDED_OVER, TAKEN, Costs, Finished, connection_of, order_of
from poseidon.simulate.waves import Collective, Shift, Wave

Times = NDArray[np.float64]
Sizes = NDArray[np.float64] | float
Arrivals = tuple[NDArray[np.intp], NDArray[np.bool_]]
"""By receiver, the sender of its message, and whether it has one."""


class FlockRun:
    """A collective under way."""

    def __init__(self, number: int, collective: Collective, costs: Costs, finished: Finished) -> None:
        self.number, self.collective, self.costs, self.finished = number, collective, costs, finished
        self.num_out = collective.num_nodes  # nodes that have not joined
        self.joined_s = np.zeros(collective.num_nodes)
        self.num_missing = [0] * collective.num_groups  # waves of a group that have not arrived
        for wave in collective.waves:
            self.num_missing[wave.group] += 1
        self.num_left = len(collective.waves)
        self.groups: dict[int, Times] = {}  # when a group's messages were in, so far
        self.before_s = self.joined_s  # when the last group was in
        self.over_s = self.joined_s


class Flock:
    """The queues of all nodes."""

    def __init__(self, machines: Machines, agenda: Agenda) -> None:
        self._machines, self._agenda = machines, agenda
        self._second_per_byte = 8 / machines.cluster.bandwidth_bps
        num_nodes = machines.cluster.num_nodes
        self._hands_free_s = np.zeros(num_nodes)
        self._out_free_s = np.zeros(num_nodes)
        self._out = Interface(agenda, self._carry)
        self._in_free_s = np.zeros(num_nodes)
        self._switches = np.array([machines.switch_of(node) for node in range(num_nodes)])
        self._up_free_s = np.zeros(machines.num_switches)
        self._down_free_s = np.zeros(machines.num_switches)
        self._known: dict[object, Arrivals] = {}
        self._rows = np.arange(machines.num_switches)[:, None] * machines.nodes_per_switch
        self._num_runs = 0
        self.bytes_sent = np.zeros(num_nodes)
        self.bytes_received = np.zeros(num_nodes)

    def begin(self, collective: Collective, finished: Finished) -> FlockRun:
        """A collective that nodes will join."""
        self._num_runs += 1
        return FlockRun(self._num_runs, collective, Costs(self._machines, collective), finished)

    def join(self, run: FlockRun, node: int) -> None:
        """The node starts now; what that leads to is looked at when all have."""
        run.joined_s[node] = self._agenda.now_s
        run.num_out -= 1
        if run.num_out == 0:
            run.over_s = run.joined_s
            self._release(run, None, run.joined_s, 0)

    def handle(self, node: int, num_bytes: float, call: Callable[[], None]) -> None:
        """The node's processor goes through so many bytes, then calls."""
        seconds = num_bytes * 8 / self._machines.handling_bps
        if not seconds:
            call()
            return
        self._hands_free_s[node] = max(self._agenda.now_s, float(self._hands_free_s[node])) + seconds
        self._agenda.at(float(self._hands_free_s[node]), call)

    # -- a wave's way -----------------------------------------------------------------------------------------------
    def _release(self, run: FlockRun, group: int | None, ready_s: Times, order: int) -> None:
        for index in run.collective.released.get(group, ()):
            self._at(ready_s, order, self._send, run, index)

    def _at(self, times_s: Times, order: int, call: Callable[..., None], run: FlockRun, index: int) -> None:
        """Calls at the earliest of these times, or now if that is over for some."""
        first_s = max(float(times_s.min()), self._agenda.now_s)
        self._agenda.at(first_s, call, run, index, times_s, order=order)

    def _send(self, run: FlockRun, index: int, ready_s: Times) -> None:
        """Through processors to interfaces."""
        wave, costs = run.collective.waves[index], run.costs
        if not (costs.overhead_s or costs.handling_s):
            self._queue(run, index, ready_s)
            return
        sends = self._senders(wave, run.collective.num_nodes)
        seconds = costs.overhead_s * wave.width + self._sizes(wave) * costs.handling_s
        done_s = np.maximum(ready_s, self._hands_free_s) + seconds
        self._hands_free_s = done_s if sends is None else np.where(sends, done_s, self._hands_free_s)
        self._at(done_s, order_of(run.number, index, HANDED_OVER), self._queue, run, index)

    def _queue(self, run: FlockRun, index: int, ready_s: Times) -> None:
        """Interfaces take them when their turn comes."""
        wave = run.collective.waves[index]
        size = float(np.mean(wave.num_bytes))
        order = order_of(run.number, index, CARRIED)
        self._out.put(connection_of(run.collective, wave), size, (run, index, ready_s), order)

    def _carry(self, message: tuple[FlockRun, int, Times]) -> float:
        """On the wire, and through the switches, to other nodes' interfaces; tells when the first sender's is free."""
        run, index, ready_s = message
        wave = run.collective.waves[index]
        sizes = self._sizes(wave)
        sends = self._senders(wave, run.collective.num_nodes)
        wire_s = sizes * self._second_per_byte
        start_s = np.maximum(ready_s, self._out_free_s)
        end_s = start_s + wire_s
        self.bytes_sent += sizes if sends is None else np.where(sends, sizes, 0.0)
        self._out_free_s = end_s if sends is None else np.where(sends, end_s, self._out_free_s)
        run.over_s = np.maximum(run.over_s, end_s if sends is None else np.where(sends, end_s, 0.0))
        sources, gets = self._arrivals(wave, run.collective.num_nodes)
        if self._machines.num_switches > 1:
            end_s = self._between_switches(start_s, end_s, sizes, (sources, gets))
        wire_in = wire_s[sources] if isinstance(wire_s, np.ndarray) else wire_s
        end_s = np.maximum(end_s[sources], self._in_free_s + wire_in)
        self.bytes_received += np.where(gets, sizes[sources] if isinstance(sizes, np.ndarray) else sizes, 0.0)
        self._in_free_s = np.where(gets, end_s, self._in_free_s)
        arrived_s = np.where(gets, end_s + run.costs.way_s * wave.width, run.joined_s)
        arrived_s = _latest_of(arrived_s, wave.width)
        if run.costs.overhead_s or run.costs.handling_s:
            self._at(arrived_s, order_of(run.number, index, ARRIVED), self._handle, run, index)
        else:
            self._take(run, index, arrived_s, ARRIVED)
        return float(self._out_free_s.min())

    def _handle(self, run: FlockRun, index: int, arrived_s: Times) -> None:
        """Processors wake up for them."""
        wave = run.collective.waves[index]
        sources, gets = self._arrivals(wave, run.collective.num_nodes)
        sizes = self._sizes(wave)
        sizes = sizes[sources] if isinstance(sizes, np.ndarray) else sizes
        seconds = run.costs.overhead_s * wave.width + sizes * run.costs.handling_s
        done_s = np.maximum(np.maximum(arrived_s, run.joined_s), self._hands_free_s) + seconds
        self._hands_free_s = np.where(gets, done_s, self._hands_free_s)
        self._take(run, index, np.where(gets, done_s, arrived_s), TAKEN)

    def _take(self, run: FlockRun, index: int, arrived_s: Times, stage: int) -> None:
        wave = run.collective.waves[index]
        arrived_s = np.maximum(arrived_s, run.joined_s)
        before_s = run.groups.get(wave.group)
        in_s = arrived_s if before_s is None else np.maximum(before_s, arrived_s)
        run.groups[wave.group] = in_s
        run.num_missing[wave.group] -= 1
        if run.num_missing[wave.group] == 0:
            if run.collective.in_order and wave.group:
                in_s = np.maximum(in_s, run.before_s)
            run.before_s = in_s
            run.over_s = np.maximum(run.over_s, in_s)
            del run.groups[wave.group]
            self._release(run, wave.group, in_s, order_of(run.number, index, stage))
        run.num_left -= 1
        if run.num_left == 0:
            for node, over_s in enumerate(run.over_s.tolist()):
                over_s = max(over_s, self._agenda.now_s)
                self._agenda.at(over_s, run.finished, node, order=order_of(run.number, 0, 0))

    # -- who sends to whom ------------------------------------------------------------------------------------------
    @staticmethod
    def _sizes(wave: Wave) -> Sizes:
        return np.array(wave.num_bytes) if isinstance(wave.num_bytes, tuple) else wave.num_bytes

    def _senders(self, wave: Wave, num_nodes: int) -> NDArray[np.bool_] | None:
        """Which nodes have a message; None: all."""
        if isinstance(wave.hop, Shift) and not isinstance(wave.num_bytes, tuple):
            return None
        return np.array([wave.to(node, num_nodes) is not None for node in range(num_nodes)])

    def _arrivals(self, wave: Wave, num_nodes: int) -> Arrivals:
        key = (wave.hop, wave.num_bytes if isinstance(wave.num_bytes, tuple) else None)
        known = self._known.get(key)
        if known is None:
            sources = np.full(num_nodes, -1)
            for node in range(num_nodes):
                to = wave.to(node, num_nodes)
                if to is not None:
                    sources[to] = node
            known = self._known[key] = sources, sources >= 0
        return known

    def _between_switches(self, start_s: Times, end_s: Times, sizes: Sizes, arrivals: Arrivals) -> Times:
        """By sender, when the last bit of its message has left the switches."""
        sources, gets = arrivals
        crosses_in = gets & (self._switches[sources] != self._switches)
        receivers = np.flatnonzero(crosses_in)
        crosses_out = np.zeros_like(gets)
        crosses_out[sources[receivers]] = True
        link_s = np.broadcast_to(sizes * (8 / self._machines.uplink_bps), start_s.shape)
        up_s = self._through(self._up_free_s, start_s, link_s, crosses_out)
        down_s = self._through(self._down_free_s, (up_s - link_s)[sources], link_s[sources], crosses_in)
        end_s = np.where(crosses_out, np.maximum(end_s, up_s), end_s)
        end_s[sources[receivers]] = np.maximum(end_s[sources[receivers]], down_s[receivers])
        return end_s

    def _through(self, free_s: Times, start_s: Times, link_s: Times, takes_part: NDArray[np.bool_]) -> Times:
        """By node, when its message is through the link of its switch: f_i = max(s_i, f_(i−1)) + l_i, first come first
        served, for all switches at once. `free_s`, by switch, is brought up to date."""
        nodes = np.flatnonzero(takes_part)
        switches = self._switches[nodes]
        if np.bincount(switches, minlength=1).max() <= 1:  # as with neighbours: each has its link to itself
            found = np.zeros_like(start_s)
            found[nodes] = free_s[switches] = np.maximum(start_s[nodes], free_s[switches]) + link_s[nodes]
            return found
        shape = (self._machines.num_switches, self._machines.nodes_per_switch)
        starts: Times = np.full(shape[0] * shape[1], np.inf)
        starts[nodes] = start_s[nodes]
        seconds: Times = np.zeros_like(starts)
        seconds[nodes] = link_s[nodes]
        order = np.argsort(starts.reshape(shape), axis=1, kind="stable") + self._rows
        starts, seconds = starts[order], seconds[order]
        carried_s = np.cumsum(seconds, axis=1)
        turns = np.where(np.isinf(starts), -np.inf, np.maximum(starts, free_s[:, None]) - (carried_s - seconds))
        through_s = carried_s + np.maximum.accumulate(turns, axis=1)
        free_s[:] = np.maximum(free_s, through_s[:, -1])
        found = np.empty(through_s.size)
        found[order] = through_s
        return found[: len(start_s)]


def _latest_of(times_s: Times, width: int) -> Times:
    """By node, the latest of its own time and those of the `width` − 1 nodes before it."""
    covered = 1
    while covered < width:
        step = min(covered, width - covered)
        times_s = np.maximum(times_s, np.concatenate((times_s[-step:], times_s[:-step])))
        covered += step
    return times_s
