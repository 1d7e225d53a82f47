"""A second simulator, written to be obvious: a clock that goes from event to event, over several iterations.

For clusters with one worker per node, with costs from the design's table. Nothing of the package's cost, link, order or
simulate modules is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from poseidon.plan import CommPlan, FactorShape, NetProfile, Scheme, Send, Unit

EPS = 1e-12
HAS_OWNERS = (Scheme.SERVER, Scheme.FACTOR_SERVER)


@dataclass
class Op:
    """A leg of a send that is on its way."""

    send: Send
    leg: str
    end_s: float


@dataclass
class UnitState:
    unit: Unit
    place: int
    apply_s: float
    num_ops: int = 0  # of this iteration, still to end
    is_ready: bool = False
    arrived_s: float | None = None
    left_s: float = 0.0
    is_applied: bool = True


@dataclass
class SlowSimulator:
    plan: CommPlan
    profile: NetProfile
    starts: list[float] = field(default_factory=list)  # of backward passes

    def __post_init__(self) -> None:
        places: dict[str, int] = {}
        for index, layer in enumerate(self.profile.layers):
            for name in layer.params:
                places.setdefault(name, index)
        self.params = {param.name: param for param in self.profile.params}
        self.now = 0.0
        self.link_free = 0.0
        self.on_way: list[Op] = []
        self.to_start: list[tuple[Send, str]] = []
        self.pulls_left: list[Send] = []  # of this iteration, in order
        self.to_pull: dict[Send, float] = {}  # what is pushed, and when it is updated
        self.units = {
            unit.index: UnitState(unit, min(places[name] for name in unit.params), self.apply_seconds(unit))
            for unit in self.plan.units
            if unit.scheme is not Scheme.LOCAL
        }

    # -- costs, from the design's table -----------------------------------------------------------------------------
    def sizes(self, unit: Unit) -> tuple[float, float, int]:
        """Wire seconds of push and pull, and messages of each, for the whole unit."""
        P = self.plan.cluster.num_workers
        first = self.params[unit.params[0]]
        e, n = first.elem_bytes, unit.num_elems
        w = e if self.plan.wire == "fp32" else min(2, e)
        if unit.scheme is Scheme.RING:
            push, pull, steps = 2 * w * n * (P - 1) / P, 0.0, 2 * (P - 1)
        elif unit.scheme is Scheme.DOUBLING:
            rounds = next(k for k in range(P) if 2**k >= P)
            push, pull, steps = e * n * rounds, 0.0, 2 * (rounds + (2**rounds != P))
        elif unit.scheme is Scheme.SERVER:
            push, pull, steps = w * n * (P - 1) / P, w * n * (P - 1) / P, P - 1
        elif unit.scheme is Scheme.FACTORS:
            push = sum(e * f.rows * (f.outputs + f.inputs) * (P - 1) for f in self.factors(unit))
            pull, steps = 0.0, P - 1
        elif unit.scheme is Scheme.FACTOR_SERVER:
            f = first.factors
            larger, smaller = max(f.outputs, f.inputs), min(f.outputs, f.inputs)
            push = e * (P - 1) * f.rows * larger / P
            pull, steps = w * larger * smaller * (P - 1) / P, P - 1
        else:
            r = first.rows
            push, pull, steps = (P - 1) * r.touched * (e * r.width + 4), 0.0, P - 1
        rate = 8 / self.plan.cluster.bandwidth_bps
        return push * rate, pull * rate, steps

    def factors(self, unit: Unit) -> list[FactorShape]:
        """Of all weights that travel together."""
        return [self.params[name].factors for name in unit.params if self.params[name].factors is not None]

    def first_push(self, unit: Unit) -> float:
        """Wire seconds of what only the first send of a FACTOR_SERVER carries."""
        if unit.scheme is not Scheme.FACTOR_SERVER:
            return 0.0
        first = self.params[unit.params[0]]
        smaller = min(first.factors.outputs, first.factors.inputs)
        P = self.plan.cluster.num_workers
        return first.elem_bytes * (P - 1) * first.factors.rows * smaller * 8 / self.plan.cluster.bandwidth_bps

    def apply_seconds(self, unit: Unit) -> float:
        cluster = self.plan.cluster
        P = cluster.num_workers
        first = self.params[unit.params[0]]
        owned = P if unit.scheme in (Scheme.SERVER, Scheme.FACTOR_SERVER) else 1
        seconds = 8 * first.elem_bytes * unit.num_elems / owned / cluster.update_bps
        if unit.scheme is Scheme.FACTORS:
            seconds += sum(2 * (P - 1) * f.rows * f.outputs * f.inputs / cluster.flops for f in self.factors(unit))
        own = {"ring": 0, "doubling": 1, "server": 2, "factors": 1, "factor-server": 3, "rows": 1}[unit.scheme.value]
        each = cluster.send_s + own * cluster.collective_s
        return seconds + each * sum(send.unit == unit.index for send in self.plan.order)

    def op_seconds(self, send: Send, leg: str) -> tuple[float, float]:
        """How long the link is held, and how long until it is over."""
        cluster, unit = self.plan.cluster, self.plan.units[send.unit]
        push, pull, steps = self.sizes(unit)
        share = (send.stop - send.start) / unit.num_elems
        wire = {"push": push, "pull": pull, "both": push + pull}[leg] * share
        if leg != "pull" and send.start == 0:
            wire += self.first_push(unit)
        hold = (wire**2 + (steps * cluster.overhead_s) ** 2) ** 0.5
        waits = steps * cluster.latency_s
        is_narrow = self.plan.wire != "fp32" and self.params[unit.params[0]].elem_bytes > 2
        if unit.scheme is Scheme.RING and not is_narrow:  # its blocks go in parts
            waits -= min(0.4 * waits, 0.25 * wire)
        return hold, max(hold, wire + waits)

    # -- time -------------------------------------------------------------------------------------------------------
    def run(self, num_iterations: int) -> float:
        """Seconds between the last two backward passes."""
        for iteration in range(num_iterations):
            self.forward(wait=iteration > 0)
            self.compute(self.profile.between_s)
            self.starts.append(self.now)
            self.backward()
        return self.starts[-1] - self.starts[-2]

    def backward(self) -> None:
        for state in self.units.values():
            assert state.is_applied, "an iteration began with something left over"
            state.is_ready, state.arrived_s, state.is_applied = False, None, False
            state.left_s = state.apply_s
            num_legs = 2 if state.unit.scheme in HAS_OWNERS and not self.plan.barrier else 1
            state.num_ops = num_legs * sum(send.unit == state.unit.index for send in self.plan.order)
        assert not self.on_way
        assert not self.pulls_left
        if not self.plan.barrier:
            self.pulls_left = [s for s in self.plan.order if self.plan.units[s.unit].scheme in HAS_OWNERS]
        self.to_start = [
            (send, "push" if self.plan.units[send.unit].scheme in HAS_OWNERS else "both") for send in self.plan.order
        ]
        for index in reversed(range(len(self.profile.layers))):
            self.compute(self.profile.layers[index].backward_s)
            for state in self.units.values():
                state.is_ready = state.is_ready or state.place == index
            self.settle()

    def end_of_layer(self) -> float:
        """When the device is through with the layer it is at, if forward never waits; now, if it is at none."""
        time = self.starts[-1]
        passes = [layer.backward_s for layer in reversed(self.profile.layers)]
        passes += [layer.forward_s for layer in self.profile.layers]
        ends = []
        for seconds in passes:
            time += seconds
            ends.append(time)
        return next((end for end in ends if end >= self.now - EPS), self.now)

    def forward(self, wait: bool) -> None:
        if wait and self.plan.barrier:
            self.until(lambda: not self.to_start and not self.on_way)
            pulls = [(send, "pull") for send in self.plan.order if self.plan.units[send.unit].scheme in HAS_OWNERS]
            for state in self.units.values():
                state.num_ops = sum(send.unit == state.unit.index for send, _ in pulls)
                state.arrived_s = None if state.num_ops else self.now
            self.to_start = pulls
            self.settle()
        for index, layer in enumerate(self.profile.layers):
            if wait:
                self.get_applied([state for state in self.units.values() if state.place == index])
            self.compute(layer.forward_s)

    def get_applied(self, needed: list[UnitState]) -> None:
        """Waits for a layer's units, and applies what has arrived meanwhile: the layer's own first, and without a
        break; others in the order of their arrival, until one of the layer's own arrives."""
        while not all(state.is_applied for state in needed):
            own = [s for s in needed if s.arrived_s is not None and not s.is_applied]
            if own:
                state = min(own, key=lambda s: (s.arrived_s, s.unit.index))
                self.compute(state.left_s)
                state.left_s, state.is_applied = 0.0, True
                continue
            others = [s for s in self.units.values() if s.arrived_s is not None and not s.is_applied]
            until = self.next_event()
            if others and until > self.now:
                state = min(others, key=lambda s: (s.arrived_s, s.unit.index))
                spent = min(state.left_s, until - self.now)
                state.left_s -= spent
                state.is_applied = state.left_s <= EPS
                self.advance(self.now + spent)
            else:
                self.step()

    def compute(self, seconds: float) -> None:
        """The device is busy; the link goes on."""
        end = self.now + seconds
        while self.next_event() < end:
            self.step()
        self.advance(end)

    def until(self, condition) -> None:
        while not condition():
            self.step()

    def next_event(self) -> float:
        return min([self.next_pull(), *(op.end_s for op in self.on_way)])

    def step(self) -> None:
        """To the next event. Pulls begin when all else of their moment has happened."""
        if self.next_pull() > self.now:
            self.advance(self.next_event())
            return
        send = self.pulls_left.pop(0)
        del self.to_pull[send]
        self.start(send, "pull")
        self.settle()

    def next_pull(self) -> float:
        """When the next pull in order begins, as far as can be told now."""
        num_pulled = sum(op.leg == "pull" for op in self.on_way)
        if not self.pulls_left or self.pulls_left[0] not in self.to_pull or num_pulled == self.plan.in_flight:
            return math.inf
        return max(self.now, self.to_pull[self.pulls_left[0]])

    def advance(self, to: float) -> None:
        assert to < math.inf, "nothing will ever happen again"
        self.now = max(self.now, to)
        self.settle()

    def start(self, send: Send, leg: str) -> None:
        hold, total = self.op_seconds(send, leg)
        turn = max(self.now, self.link_free)
        self.link_free = turn + (total if self.plan.in_flight == 1 else hold)
        self.on_way.append(Op(send, leg, turn + total))

    def settle(self) -> None:
        """Ends what is over, and starts what may start, at this very moment."""
        while True:
            over = [op for op in self.on_way if op.end_s <= self.now]
            for op in over:
                self.on_way.remove(op)
                if op.leg == "push" and not self.plan.barrier:
                    self.to_pull[op.send] = self.end_of_layer()
                state = self.units[op.send.unit]
                state.num_ops -= 1
                held_back = self.plan.barrier and any(leg != "pull" for _, leg in self.to_start)
                if state.num_ops == 0 and not held_back:
                    state.arrived_s = op.end_s
            pulls = [op for op in self.on_way if op.leg == "pull"]
            pushes = [op for op in self.on_way if op.leg != "pull"]
            lane = pulls if self.to_start and self.to_start[0][1] == "pull" else pushes
            if self.to_start and len(lane) < self.plan.in_flight:
                send, leg = self.to_start[0]
                if self.units[send.unit].is_ready:
                    self.to_start.pop(0)
                    self.start(send, leg)
                    continue
            if not over:
                return
