"""Search: the schemes, sizes and order with the shortest predicted iteration, not the fewest bytes.

Chosen together: the scheme of every bundle, from what size on small units are left alone, how large ones are cut, and
the order. A candidate is played (`simulate.py`); of two that take equally long, the one with less time on the link
counts, then the one with fewer sends, then the READY order, which no delay can upset.

A small dense unit may go by DOUBLING, which takes fewer messages and more bytes: that is decided by its size once units
are fused, where workers have nodes to themselves.

Schemes: all combinations if they are few, most promising first, as long as a lower bound leaves hope; otherwise from
two starts (fewest bytes; all RING) one decision is changed at a time while that helps. Bundles without structure then
are one decision. Every candidate's sizes and orders are tried; in the end single units are cut finer where that helps.

Same input, same result: only +, −, ·, /, √ and comparisons decide, in an order that does not depend on dicts or sets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poseidon.plan.bundles import Bundle
from poseidon.plan.cluster import Cluster
from poseidon.plan.commplan import COLLECTIVE, Scheme, Unit
from poseidon.plan.cost import Cost, CostModel
from poseidon.plan.drafts import Draft, Drafts, Piece
from poseidon.plan.link import HIDING_SHARE, operation
from poseidon.plan.order import Order, needed_order, ready_order
from poseidon.plan.profile import NetProfile
from poseidon.plan.request import PlanRequest, allowed_schemes
from poseidon.plan.simulate import Job, Passes, in_two_legs, iteration_seconds
from poseidon.plan.trial import Layout, Rank, Schemes, Trial

MOST_STEPS = 5000  # combinations × what a simulation goes through: above that, all combinations would take seconds

WORTH_REFINING = 1.02  # of the best: what is further off does not get there by finer cuts

MOST_DOUBLED_BYTES = 1 << 21  # DOUBLING needs as much memory again


@dataclass(frozen=True, slots=True)
class Decision:
    """Bundles that get the same scheme, and what it may be."""

    bundles: tuple[int, ...]
    options: Schemes


class Search:
    """The candidates for one net on one cluster."""

    def __init__(self, profile: NetProfile, cluster: Cluster, request: PlanRequest, bundles: Sequence[Bundle]) -> None:
        self._bundles = bundles
        self._request = request
        self._model = CostModel(cluster, request.wire, request.pattern)
        self._passes = Passes(profile)
        self._barrier = profile.needs_all_gradients
        self._drafts = Drafts(
            bundles,
            self._model,
            in_two=in_two_legs(request.pattern, self._barrier),
            fuses_factors=request.pattern == COLLECTIVE,
        )
        self._doubles: dict[Draft, Draft] = {}
        self._compute_s = profile.compute_s
        self._costs = [{scheme: self._model.cost(scheme, b.load) for scheme in request.ways_of(b)} for b in bundles]
        asked = allowed_schemes(bundles, request)
        flat = max(cluster.node_workers) == 1
        self._may_double = [flat and {Scheme.RING, Scheme.DOUBLING} <= set(allowed) for allowed in asked]
        self._allowed = [self._undominated(index, allowed) for index, allowed in enumerate(asked)]
        self._of_param = {param.name: index for index, bundle in enumerate(bundles) for param in bundle.params}
        self._layouts = [
            Layout(*sizes) for sizes in itertools.product(request.fuse_bytes, request.chunk_bytes, request.orders)
        ]

    def best(self) -> Trial:
        """The best candidate."""
        decisions = self._decisions()
        if self._can_try_all(decisions):
            return self._best_combination(decisions)
        starts = [self._cheapest(), tuple(allowed[0] for allowed in self._allowed)]
        steps = [*decisions, *self._passengers()]
        return min((self._improved(start, steps) for start in starts), key=lambda trial: trial.rank)

    # -- what there is to decide ------------------------------------------------------------------------------------
    def _undominated(self, index: int, allowed: Schemes) -> Schemes:
        """Without a barrier RING and SERVER fill the link alike, but RING waits for no owner: SERVER is tried where it
        costs less in something."""
        if Scheme.RING in allowed:
            allowed = tuple(scheme for scheme in allowed if scheme is not Scheme.DOUBLING)
        if self._barrier or not {Scheme.RING, Scheme.SERVER} <= set(allowed):
            return allowed
        ring, server = self._costs[index][Scheme.RING], self._costs[index][Scheme.SERVER]
        ring_s, server_s = self._model.send_s(Scheme.RING), self._model.send_s(Scheme.SERVER)
        if _no_worse(ring, server) and ring_s <= server_s:
            return tuple(scheme for scheme in allowed if scheme is not Scheme.SERVER)
        return allowed

    def _decisions(self) -> list[Decision]:
        """One per bundle; if that gives too many combinations, one for all bundles that differ in nothing but size."""
        single = [Decision((index,), options) for index, options in enumerate(self._allowed)]
        if self._can_try_all(single):
            return single
        plain: dict[Schemes, list[int]] = {}
        for index, options in enumerate(self._allowed):
            if all(scheme.is_dense for scheme in options):
                plain.setdefault(options, []).append(index)
        together = [Decision(tuple(indices), options) for options, indices in plain.items()]
        taken = {index for indices in plain.values() for index in indices}
        return together + [decision for decision in single if decision.bundles[0] not in taken]

    def _passengers(self) -> list[Decision]:
        """Small layers that send less without factors, and one message less with them, beside those of others: that
        shows only when all of them change at once."""
        found: dict[int, list[int]] = {}
        for index, (bundle, cheapest) in enumerate(zip(self._bundles, self._cheapest(), strict=True)):
            if (
                cheapest is not Scheme.FACTORS
                and Scheme.FACTORS in self._allowed[index]
                and self._drafts.may_join(bundle)
            ):
                found.setdefault(bundle.load.num_rows, []).append(index)
        return [Decision(tuple(indices), (Scheme.FACTORS,)) for indices in found.values() if len(indices) > 1]

    def _can_try_all(self, decisions: Sequence[Decision]) -> bool:
        num_combinations = math.prod(len(decision.options) for decision in decisions)
        return num_combinations * (len(self._bundles) + len(self._passes.forward_s)) <= MOST_STEPS

    def _with(self, schemes: Schemes, decision: Decision, scheme: Scheme) -> Schemes:
        changed = list(schemes)
        for index in decision.bundles:
            changed[index] = scheme
        return tuple(changed)

    def _cheapest(self) -> Schemes:
        return tuple(
            min(allowed, key=lambda scheme: round(costs[scheme].bytes_sent))
            for allowed, costs in zip(self._allowed, self._costs, strict=True)
        )

    # -- searching --------------------------------------------------------------------------------------------------
    def _best_combination(self, decisions: Sequence[Decision]) -> Trial:
        bounded = sorted(self._combinations(decisions), key=lambda entry: entry[0])
        best = self._best_layout(bounded[0][1], self._layouts)
        for bound_s, schemes in bounded[1:]:
            if bound_s > best.rank.iteration_s:
                break
            best = self._best_layout(schemes, self._layouts, best)
        return best

    def _combinations(self, decisions: Sequence[Decision]) -> Iterator[tuple[float, Schemes]]:
        """Every combination with its lower bound."""
        for chosen in itertools.product(*(decision.options for decision in decisions)):
            schemes = tuple(allowed[0] for allowed in self._allowed)
            for decision, scheme in zip(decisions, chosen, strict=True):
                schemes = self._with(schemes, decision, scheme)
            yield self._bound_s(schemes), schemes

    def _improved(self, start: Schemes, decisions: Sequence[Decision]) -> Trial:
        """One decision changed at a time, in the layout at hand; then all layouts again; until neither helps."""
        best = self._best_layout(start, self._layouts)
        while True:
            before = best.rank
            for decision in decisions:
                for scheme in decision.options:
                    changed = self._with(best.schemes, decision, scheme)
                    if changed != best.schemes:
                        best = self._best_layout(changed, [best.layout], best)
            if best.rank == before:
                return best
            best = self._best_layout(best.schemes, self._layouts, best)

    def _bound_s(self, schemes: Schemes) -> float:
        """No layout can be faster: the device does its work, and the link carries what backward's last part gives.

        The bundles up to a layer are ready when backward has passed it, or later, and forward has that layer and all
        behind it still to run when the last of them has arrived.
        """
        passes = self._passes
        costs = [costs[scheme] for costs, scheme in zip(self._costs, schemes, strict=True)]
        bound_s = self._compute_s + math.fsum(cost.apply_s for cost in costs)
        forward_s = math.fsum(passes.forward_s)
        carried_s = passed_s = 0.0
        layer = 0
        for bundle, cost in zip(self._bundles, costs, strict=True):
            passed_s += math.fsum(passes.forward_s[layer : bundle.place])
            layer = bundle.place
            carried_s += cost.push_wire_s if self._barrier else cost.wire_s
            left_s = forward_s if self._barrier else forward_s - passed_s
            bound_s = max(bound_s, passes.ready_s[bundle.place] + carried_s + left_s + passes.between_s)
        return bound_s * (1 - 1e-12)  # sums in another order must not rule out the best

    def refined(self, best: Trial) -> Trial:
        """The best with single units cut finer: a size that is right for most of them may be wrong for those that the
        next forward pass waits for last."""
        starts: dict[tuple[tuple[Draft, ...], tuple[int, ...]], Trial] = {}
        for _, alike in itertools.groupby(self._layouts, key=lambda layout: (layout.fuse_bytes, layout.chunk_bytes)):
            trial = self._best_layout(best.schemes, list(alike))
            if trial.rank.iteration_s <= best.rank.iteration_s * WORTH_REFINING:
                starts.setdefault((trial.drafts, trial.num_sends), trial)
        return min((self._cut_finer(start) for start in starts.values()), key=lambda trial: trial.rank, default=best)

    def _cut_finer(self, best: Trial) -> Trial:
        """Units in twice as many pieces, one unit at a time, while that helps and pieces are not too small."""
        before = None
        while best.rank != before:
            before = best.rank
            for unit, draft in enumerate(best.drafts):
                counts = list(best.num_sends)
                counts[unit] *= 2
                if counts[unit] > self._num_pieces(draft, min(self._request.chunk_bytes)):
                    continue
                for order in self._request.orders:
                    trial = self._play(best.schemes, replace(best.layout, order=order), best.drafts, counts)
                    best = min(best, trial, key=lambda trial: trial.rank)
        return best

    # -- playing ----------------------------------------------------------------------------------------------------
    def _best_layout(self, schemes: Schemes, layouts: Sequence[Layout], best: Trial | None = None) -> Trial:
        """The best with these schemes, or `best` if none is better."""
        played: set[tuple[tuple[Draft, ...], tuple[int, ...]]] = set()
        for fuse_bytes, fused_alike in itertools.groupby(layouts, key=lambda layout: layout.fuse_bytes):
            drafts = self._drafts.fused(schemes, fuse_bytes)
            for chunk_bytes, cut_alike in itertools.groupby(fused_alike, key=lambda layout: layout.chunk_bytes):
                counts = tuple(self._num_pieces(draft, chunk_bytes) for draft in drafts)
                if (drafts, counts) in played:
                    continue
                played.add((drafts, counts))
                for layout in cut_alike:
                    for candidate in self._with_doubling(drafts, counts):
                        if best is not None and self._link_bound_s(candidate, counts) > best.rank.iteration_s:
                            continue
                        trial = self._play(schemes, layout, candidate, counts)
                        if best is None or trial.rank < best.rank:
                            best = trial
        assert best is not None, "a request has candidates"
        return best

    def _link_bound_s(self, drafts: tuple[Draft, ...], counts: Sequence[int]) -> float:
        """No order can be faster: from the first gradient on the link carries all pieces, and the next pass comes
        after."""
        link_s = 0.0
        for draft, number in zip(drafts, counts, strict=True):
            both = draft.cost.push + draft.cost.pull
            waited_s = number * both.latency_s - min(number * both.hidden_s, HIDING_SHARE * draft.cost.wire_s)
            link_s += draft.cost.wire_s + (waited_s if self._request.in_flight == 1 else 0.0)
        first_s = min((self._passes.ready_s[draft.place] for draft in drafts), default=0.0)
        return (first_s + link_s + self._passes.between_s) * (1 - 1e-12)

    def _with_doubling(self, drafts: tuple[Draft, ...], counts: Sequence[int]) -> list[tuple[Draft, ...]]:
        """The drafts as they are, and with the small ones by DOUBLING, if there are any."""
        other = tuple(
            self._doubled(draft) if number == 1 else draft for draft, number in zip(drafts, counts, strict=True)
        )
        return [drafts] if other == drafts else [drafts, other]

    def _doubled(self, draft: Draft) -> Draft:
        if draft not in self._doubles:
            self._doubles[draft] = self._make_double(draft)
        return self._doubles[draft]

    def _make_double(self, draft: Draft) -> Draft:
        """By DOUBLING if that is over sooner, even if its bytes are counted twice: others wait for the link as well."""
        may_double = all(self._may_double[self._of_param[param.name]] for param in draft.params)
        num_bytes = draft.load.num_elems * draft.load.elem_bytes
        if not (draft.scheme.is_dense and may_double and num_bytes <= MOST_DOUBLED_BYTES):
            return draft
        cost = self._model.cost(Scheme.DOUBLING, draft.load)
        other, doubling = operation(draft.cost.push + draft.cost.pull, 1.0), operation(cost.push, 1.0)
        if doubling.total_s + doubling.hold_s >= other.total_s + other.hold_s:
            return draft
        return replace(draft, scheme=Scheme.DOUBLING, cost=cost)

    def _num_pieces(self, draft: Draft, chunk_bytes: float) -> int:
        return 1 if self._request.keeps_whole(draft.scheme) else self._drafts.num_pieces(draft, chunk_bytes)

    def _play(self, schemes: Schemes, layout: Layout, drafts: tuple[Draft, ...], counts: Sequence[int]) -> Trial:
        in_flight = self._request.in_flight
        assert in_flight is not None
        parts = zip(drafts, counts, strict=True)
        pieces = [self._drafts.pieces(draft, unit, number) for unit, (draft, number) in enumerate(parts)]
        places = [draft.place for draft in drafts]
        if layout.order is Order.READY:
            order = ready_order(pieces, places)
        else:
            traffic = self._passes.traffic(in_flight, len(drafts), barrier=self._barrier)
            order = needed_order(pieces, places, self._passes.ready_s, traffic)
        jobs = [
            Job(draft.place, draft.cost.apply_s + len(group) * self._model.send_s(draft.scheme))
            for draft, group in zip(drafts, pieces, strict=True)
        ]
        iteration_s = iteration_seconds(self._passes, jobs, order, in_flight, barrier=self._barrier)
        network_s = math.fsum(_seconds(piece) for piece in order)
        rank = Rank(round(iteration_s, 12), round(network_s, 12), len(order))
        return Trial(schemes, layout, drafts, order, iteration_s, rank)

    # -- the result -------------------------------------------------------------------------------------------------
    def unit(self, index: int, draft: Draft, best: Trial) -> Unit:
        """A draft of the best candidate as a unit of the plan."""
        by_structure = self._structured_cost(draft)
        return Unit(
            index=index,
            params=tuple(param.name for param in draft.params),
            shapes=tuple(param.shape for param in draft.params),
            num_elems=draft.load.num_elems,
            scheme=draft.scheme,
            dense_bytes=round(self._model.cost(Scheme.RING, draft.load).bytes_sent),
            factor_bytes=None if by_structure is None else round(by_structure.bytes_sent),
            bytes_sent=round(draft.cost.bytes_sent),
            seconds=math.fsum(_seconds(piece) for piece in best.order if piece.unit == index),
            reason=self._reason(draft, best),
        )

    def _structured_cost(self, draft: Draft) -> Cost | None:
        if draft.load.factors:
            return self._model.cost(Scheme.FACTORS, draft.load)
        return None if draft.load.rows is None else self._model.cost(Scheme.ROWS, draft.load)

    def _reason(self, draft: Draft, best: Trial) -> str:
        members = {param.name for param in draft.params}
        inside = [i for i, bundle in enumerate(self._bundles) if bundle.params[0].name in members]
        request = self._request
        if request.scheme is not None or any(o.matches(self._bundles[i]) for o in request.overrides for i in inside):
            return "asked for"
        if len(inside) > 1 and draft.scheme.is_dense:
            together = f"{len(members)} parameters small enough to travel together"
            whys = {param.why_dense: param.name for i in reversed(inside) for param in self._bundles[i].params}
            return "; ".join([together, *(f"{name}: {why}" for why, name in reversed(whys.items()) if why)])
        allowed = [self._allowed[index] for index in inside]
        others = [way for way in allowed[0] if way is not draft.scheme and all(way in ways for ways in allowed)]
        if not others:
            return self._bundles[inside[0]].params[0].why_dense or "a dense gradient, without factors or rows"
        decision = Decision(tuple(inside), tuple(others))
        longer = []
        for scheme in others:
            trial = self._best_layout(self._with(best.schemes, decision, scheme), [best.layout])
            longer.append(f"{(trial.iteration_s - best.iteration_s) * 1e3:+.1f} ms by {scheme.name}")
        return f"an iteration takes {', '.join(longer)}"


def _seconds(piece: Piece) -> float:
    return piece.push.total_s + (0.0 if piece.pull is None else piece.pull.total_s)


def _no_worse(one: Cost, other: Cost) -> bool:
    """Whether every part of one cost is at most the other's, but for rounding."""
    mine, others = one.push + one.pull, other.push + other.pull
    pairs = [
        (one.once_s, other.once_s),
        (mine.wire_s, others.wire_s),
        (mine.local_s, others.local_s),
        (mine.latency_s, others.latency_s),
        (mine.overhead_s, others.overhead_s),
        (one.apply_s, other.apply_s),
    ]
    return all(a <= b * (1 + 1e-12) for a, b in pairs)
