"""Plans are renewed when iterations stay different, seldom where they never settle; what was asked for ends no run."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import poseidon
from poseidon.errors import WorkersDiffer
from poseidon.parallel import Parallel
from poseidon.transport.inproc import run_workers
from tests.parallel.team import SIZE, assert_same, batch, filled, grads, in_team, loss_of, mean_grads, small, values

PLANNED = 6  # iterations after which the plan is made: measured as they come, then as planned
FACTORS = {"*": "factors"}


def reasons(model):
    return {name: unit.reason for unit in model.plan.units for name in unit.params}


def schemes_of(model):
    return {name: unit.scheme.value for unit in model.plan.units for name in unit.params}


def count_renewals(member):
    replica, number = member.model._replica, [0]
    renew = replica._renew

    def counting():
        number[0] += 1
        renew()

    replica._renew = counting
    return number


# -- factors that are not all there is ------------------------------------------------------------------------------
@pytest.mark.parametrize("overlaps", [False, True])
def test_factors_that_were_asked_for_go_dense_under_accumulation_with_the_reason(overlaps):
    def act(member):
        optimizer = torch.optim.SGD(member.model.parameters(), 0.1)
        optimizer = poseidon.overlap(optimizer, member.model) if overlaps else optimizer
        for step in range(16):
            optimizer.zero_grad()
            with member.model.no_sync():
                member.loss(2 * step).backward()
            member.loss(2 * step + 1).backward()
            optimizer.step()
        return values(member.model), schemes_of(member.model), reasons(member.model)

    model = copy.deepcopy(small())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(16):
        optimizer.zero_grad()
        losses = [loss_of(model, s, rank) for s in (2 * step, 2 * step + 1) for rank in range(SIZE)]
        (sum(losses) / SIZE).backward()
        optimizer.step()
    for found, schemes, why in in_team(act, schemes=FACTORS):
        assert_same(found, values(model))
        assert set(schemes.values()) == {"ring"}
        assert "more than its layer's factors" in why["2.weight"]


def sequence_model():
    return filled(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5)).double())


def sequences(step, rank, length):
    return batch(100 * step + length, rank, 2 * length)[0].view(2, length, 6)


def test_now_and_then_a_longer_sequence_goes_dense_and_factors_stay():
    lengths = [3 if step < PLANNED or step % 4 else 5 for step in range(40)]

    def act(member):
        found = []
        for step, length in enumerate(lengths):
            member.model.zero_grad()
            member.model(sequences(step, member.rank, length)).square().sum().backward()
            found.append(grads(member.model))
        return found, schemes_of(member.model)

    base = sequence_model()
    for found, schemes in in_team(act, base, schemes=FACTORS):
        assert set(schemes.values()) == {"factors"}
        for step, own in enumerate(found):
            expected = mean_grads(lambda m, r, s=step: m(sequences(s, r, lengths[s])).square().sum(), base)
            assert_same(own, expected)


def test_sequences_that_stay_longer_get_more_room():
    def act(member):
        for step in range(20):
            member.model.zero_grad()
            member.model(sequences(step, member.rank, 3 if step < 8 else 5)).sum().backward()
        return member.model.plan.unit_of()["0.weight"]

    for unit in in_team(act, sequence_model(), schemes=FACTORS):
        assert unit.scheme.value == "factors"
        sides = sum(sum(shape) for shape in unit.shapes if len(shape) == 2)  # all of a row; 2 × 5 of them
        assert unit.factor_bytes == 8 * (2 * 5) * sides


def test_what_was_asked_for_does_not_outlast_freezing():
    """A pattern that matches nothing that learns any more is nobody's fault."""

    def act(member):
        for step in range(12):
            member.model.module[2].requires_grad_(not 5 <= step < 9)
            member.model.zero_grad()
            member.loss(step).backward()
        return schemes_of(member.model)

    for schemes in in_team(act, schemes={"2": "factors"}):
        assert schemes["2.weight"] in ("ring", "factors")


# -- how often ------------------------------------------------------------------------------------------------------
def test_batches_that_never_settle_are_planned_for_less_and_less_often():
    def act(member):
        number = count_renewals(member)
        for step in range(150):
            member.model.zero_grad()
            loss_of(member.model, step, member.rank, 2 + step * step % 17).backward()
        return number[0]

    for number in in_team(act):
        assert 2 <= number <= 5


def test_replan_is_served_at_once():
    def act(member):
        number = count_renewals(member)
        for step in range(20):
            member.model.zero_grad()
            if step in (6, 12):
                member.model.replan()
            member.loss(step).backward()
        return number[0], member.model.is_planned

    # With factors, which a plan may have or not as times fall out, passes would be measured twice for each plan.
    assert in_team(act, schemes={"*": "ring"}) == [(3, True)] * SIZE


# -- rows -----------------------------------------------------------------------------------------------------------
class Reading(nn.Module):
    """A table and a layer, each inside a checkpoint or not."""

    def __init__(self, reentrant):
        super().__init__()
        self.table, self.layer, self.reentrant = nn.Embedding(50, 6), nn.Linear(6, 16), reentrant
        self.double()

    def forward(self, numbers, x):
        def inside(numbers, x):
            return self.layer(self.table(numbers) + x)

        if self.reentrant is None:
            return inside(numbers, x)
        return checkpoint(inside, numbers, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_checkpointed_layers_are_planned_with_the_rows_they_have(reentrant):
    def act(member):
        for step in range(PLANNED + 1):
            member.model.zero_grad()
            numbers = torch.arange(3) + step + member.rank
            x = batch(step, member.rank)[0].requires_grad_(True)
            member.model(numbers, x).square().sum().backward()
        units = member.model.plan.unit_of()
        return units["layer.weight"].factor_bytes, units["table.weight"].factor_bytes

    for factors, rows in in_team(act, filled(Reading(reentrant)), schemes={"layer": "factors", "table": "rows"}):
        assert factors == 8 * 3 * (16 + 6)
        assert rows == 3 * (8 * 6 + 4)


# -- models that are not alike --------------------------------------------------------------------------------------
def embedding(rank, **options):
    return nn.Sequential(nn.Embedding(10, 4, **(options if rank else {})), nn.Linear(4, 3))


def compiled(rank):
    model = embedding(0)
    if rank:
        model[1].compile(backend="eager")
    return model


@pytest.mark.parametrize(
    "build", [lambda rank: embedding(rank, max_norm=5.0), lambda rank: embedding(rank, sparse=True), compiled]
)
def test_models_of_the_same_shapes_are_told_apart(build):
    def work(transport):
        with pytest.raises(WorkersDiffer, match=r"model's layers, line \d.*with the same options, hooks and compiled"):
            Parallel(build(transport.rank), transport=transport, bandwidth="100mbit")

    run_workers(2, work, timeout_s=30)


# -- autocast -------------------------------------------------------------------------------------------------------
def test_autocast_leaves_double_precision_alone():
    """As it does with a bare Linear."""

    def act(member):
        for step in range(PLANNED + 1):
            member.model.zero_grad()
            x, y = batch(step, member.rank)
            with torch.autocast("cpu", torch.bfloat16):
                out = member.model(x)
            F.cross_entropy(out, y).backward()
        return out.dtype, grads(member.model)

    for dtype, found in in_team(act, schemes=FACTORS):
        assert dtype == torch.float64
        assert_same(found, mean_grads(lambda model, rank: loss_of(model, PLANNED, rank)))
