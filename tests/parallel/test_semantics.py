"""What users of DistributedDataParallel rely on, one by one. The oracle is one process with everybody's losses."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import poseidon
from poseidon.errors import UsageError, WorkersDiffer
from poseidon.parallel import Parallel
from poseidon.parallel.structure import find_structure
from poseidon.transport.inproc import run_workers
from tests.parallel.team import (
    SIZE,
    alone,
    assert_same,
    batch,
    filled,
    grads,
    in_team,
    loss_of,
    mean_grads,
    small,
    values,
)

PLANNED = 6  # iterations after which the plan is made: measured as they come, then as planned


def sgd(params):
    return torch.optim.SGD(params, 0.1, momentum=0.9)


def train(member, optimizer, steps, start=0):
    for step in range(start, start + steps):
        optimizer.zero_grad()
        member.loss(step).backward()
        optimizer.step()


@pytest.mark.parametrize("schemes", [{"*": "factors"}, {"*": "ring"}, None])
def test_gradients_are_means_after_every_backward(schemes):
    def act(member):
        found = []
        for step in range(PLANNED + 2):
            member.model.zero_grad()
            member.loss(step).backward()
            found.append(grads(member.model))
        return found, {unit.scheme.value for unit in member.model.plan.units}

    for found, used in in_team(act, schemes=schemes):
        for step, own in enumerate(found):
            assert_same(own, mean_grads(lambda model, rank, step=step: loss_of(model, step, rank)))
        if schemes:
            assert set(schemes.values()) <= used


def test_no_sync_accumulates_and_the_next_pass_exchanges_all_of_it():
    def act(member):
        train(member, torch.optim.SGD(member.model.parameters(), 0.0), PLANNED)
        member.model.zero_grad()
        with member.model.no_sync():
            member.loss(10).backward()
            local = grads(member.model)
            member.loss(11).backward()
        member.loss(12).backward()
        return local, grads(member.model)

    for rank, (local, total) in enumerate(in_team(act, schemes={"*": "factors"})):
        own = copy.deepcopy(small())
        loss_of(own, 10, rank).backward()
        assert_same(local, grads(own))
        assert_same(total, mean_grads(lambda model, rank: sum(loss_of(model, step, rank) for step in (10, 11, 12))))


def test_backward_twice_adds_up_as_it_does_on_one_worker():
    def act(member):
        member.loss(0).backward()
        member.loss(1).backward()
        return grads(member.model)

    for found in in_team(act, schemes={"*": "factors"}):
        assert_same(found, mean_grads(lambda model, rank: loss_of(model, 0, rank) + loss_of(model, 1, rank)))


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x):
        return self.one(x), self.other(x)


def heads_loss(model, rank, which):
    x, y = batch(0, rank)
    return F.cross_entropy(model(x)[which], y)


def test_two_losses_may_bring_one_round_together():
    def act(member):
        x, y = batch(0, member.rank)
        one, other = member.model(x)
        F.cross_entropy(one, y).backward()
        F.cross_entropy(other, y).backward()
        return grads(member.model)

    base = filled(TwoHeads().double())
    expected = mean_grads(lambda model, rank: heads_loss(model, rank, 0) + heads_loss(model, rank, 1), base)
    for found in in_team(act, base):
        assert_same(found, expected)


@pytest.mark.parametrize("moment", ["forward", "step"])
def test_parameters_without_a_gradient_are_named_before_they_do_harm(moment):
    def act(member):
        optimizer = torch.optim.SGD(member.model.parameters(), 0.1)
        heads_loss(member.model, member.rank, 0).backward()
        with pytest.raises(
            UsageError, match=r"2 parameter\(s\) got no gradient.*other\.weight.*find_unused_parameters"
        ):
            optimizer.step() if moment == "step" else member.model(batch(0, 0)[0])

    in_team(act, filled(TwoHeads().double()))


def test_unused_parameters_are_left_alone_if_nobody_uses_them():
    def act(member):
        found = []
        for _ in range(PLANNED + 1):
            member.model.zero_grad()
            heads_loss(member.model, member.rank, 1 if member.rank else 0).backward()
            found.append(grads(member.model))
        member.model.zero_grad()
        heads_loss(member.model, member.rank, 0).backward()
        return found, grads(member.model)

    base = filled(TwoHeads().double())
    mixed = mean_grads(lambda model, rank: heads_loss(model, rank, 1 if rank else 0), base)
    first = mean_grads(lambda model, rank: heads_loss(model, rank, 0), base)
    for found, last in in_team(act, base, find_unused_parameters=True):
        for own in found:
            assert_same(own, mixed)
        assert_same(last, first)
        assert last[2] is None


def test_a_second_gradient_within_a_round_is_refused():
    def act(member):
        x, y = batch(0, member.rank)
        one, _ = member.model(x)
        loss = F.cross_entropy(one, y)
        loss.backward(retain_graph=True)
        with pytest.raises(UsageError, match=r"second gradient.*no_sync"):
            loss.backward()

    in_team(act, filled(TwoHeads().double()))


def test_factors_of_a_pass_that_does_not_reach_the_weights_are_dropped():
    def act(member):
        train(member, torch.optim.SGD(member.model.parameters(), 0.0), PLANNED)
        member.model.zero_grad()
        x, y = batch(5, member.rank)
        x.requires_grad_(True)
        saliency = torch.autograd.grad(F.cross_entropy(member.model(x), y), x)[0]
        member.loss(6).backward()
        return saliency, grads(member.model)

    for rank, (saliency, found) in enumerate(in_team(act, schemes={"*": "factors"})):
        x, y = batch(5, rank)
        x.requires_grad_(True)
        assert_same([saliency], torch.autograd.grad(F.cross_entropy(small()(x), y), x))
        assert_same(found, mean_grads(lambda model, rank: loss_of(model, 6, rank)))


def penalised(model, step, rank):
    """A loss with the norm of its gradient by the input, as of a critic with a gradient penalty."""
    x, y = batch(step, rank)
    x = x.to(next(model.parameters()).dtype).requires_grad_(True)
    loss = F.cross_entropy(model(x).to(x.dtype), y)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    return loss + (slope.norm(dim=1) - 1).square().mean()


@pytest.mark.parametrize("overlaps", [False, True])
def test_backward_itself_may_be_differentiated(overlaps):
    """The weights get gradients from both passes, of which factors tell only one."""

    def act(member):
        optimizer = sgd(member.model.parameters())
        optimizer = poseidon.overlap(optimizer, member.model) if overlaps else optimizer
        for step in range(PLANNED + 6):
            if step % 2:
                optimizer.zero_grad()
            loss = penalised(member.model, step, member.rank)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return values(member.model)

    model = small()
    optimizer = sgd(model.parameters())
    for step in range(PLANNED + 6):
        optimizer.zero_grad()
        for rank in range(SIZE):
            (penalised(model, step, rank) / SIZE).backward()
        optimizer.step()
    for found in in_team(act, schemes={"*": "factors"}):
        assert_same(found, values(model))


def test_backward_may_be_differentiated_under_autocast():
    """What the second pass gives reaches the weights, not their narrow copies. To the rounding of bf16."""

    def run(model, rank):
        with torch.autocast("cpu", torch.bfloat16):
            return penalised(model, 0, rank)

    base = small().float()

    def act(member):
        for _ in range(PLANNED + 1):
            member.model.zero_grad()
            run(member.model, member.rank).backward()
        return grads(member.model)

    for found in in_team(act, base, schemes={"*": "factors"}):
        for one, other in zip(found, mean_grads(run, base), strict=True):
            assert float((one - other).norm()) <= 0.02 * float(other.norm())


@pytest.mark.parametrize("schemes", [{"*": "factors"}, None])
def test_gradients_that_are_asked_for_are_this_workers_own(schemes):
    """torch.autograd.grad: nothing is exchanged, nothing added, also of weights that travel as factors."""

    def act(member):
        train(member, torch.optim.SGD(member.model.parameters(), 0.0), PLANNED)
        loss, params = member.loss(PLANNED), list(member.model.parameters())
        asked = torch.autograd.grad(loss, params, retain_graph=True)
        one = torch.autograd.grad(loss, params[3], retain_graph=True)
        member.model.zero_grad()
        loss.backward()
        return asked, one, grads(member.model)

    for rank, (asked, one, found) in enumerate(in_team(act, schemes=schemes)):
        model = small()
        own = torch.autograd.grad(loss_of(model, PLANNED, rank), list(model.parameters()))
        assert_same(asked, own)
        assert_same(one, own[3:4])
        assert_same(found, mean_grads(lambda model, rank: loss_of(model, PLANNED, rank)))


def curved(model, rank):
    """A loss with the norm of its gradient by the parameters."""
    x, y = batch(0, rank)
    loss = F.cross_entropy(model(x.to(next(model.parameters()).dtype)), y)
    asked = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + sum(grad.square().sum() for grad in asked)


def test_gradients_that_are_asked_for_may_be_differentiated():
    def act(member):
        train(member, torch.optim.SGD(member.model.parameters(), 0.0), PLANNED)
        member.model.zero_grad()
        curved(member.model, member.rank).backward()
        return grads(member.model)

    for found in in_team(act, schemes={"*": "factors"}):
        assert_same(found, mean_grads(curved))


def test_gradients_that_are_asked_for_are_not_differentiated_under_autocast():
    def act(member):
        for _ in range(PLANNED):
            member.model.zero_grad()
            F.cross_entropy(member.model(batch(0, member.rank)[0].float()), batch(0, member.rank)[1]).backward()
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(UsageError, match="schemes="):
            curved(member.model, member.rank)

    in_team(act, small().float(), schemes={"*": "factors"})


@pytest.mark.parametrize("size", [1, 5])
def test_batches_may_shrink_and_grow(size):
    """Factors have room for the batch that was measured; a larger one goes dense, and is planned for later."""

    def act(member):
        train(member, torch.optim.SGD(member.model.parameters(), 0.0), PLANNED)
        found = []
        for step in range(10):
            member.model.zero_grad()
            loss_of(member.model, step, member.rank, size).backward()
            found.append(grads(member.model))
        return found, member.model.is_planned, member.model.plan.unit_of()["0.weight"].factor_bytes

    for found, is_planned, factor_bytes in in_team(act, schemes={"*": "factors"}):
        assert is_planned
        assert factor_bytes == 8 * size * (22 + 28 + 17)  # of the three layers together, sent by one of two workers
        for step, own in enumerate(found):
            assert_same(own, mean_grads(lambda model, rank, step=step: loss_of(model, step, rank, size)))


def test_uneven_batches_on_workers_need_no_care():
    def act(member):
        train(member, torch.optim.SGD(member.model.parameters(), 0.0), PLANNED)
        member.model.zero_grad()
        loss_of(member.model, 9, member.rank, 1 + 4 * member.rank).backward()
        return grads(member.model)

    for found in in_team(act, schemes={"*": "factors"}):
        assert_same(found, mean_grads(lambda model, rank: loss_of(model, 9, rank, 1 + 4 * rank)))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool):
        super().__init__()
        self.body, self.reentrant = small(), reentrant

    def forward(self, x):
        h = self.body[:2](x)
        return self.body[4:](checkpoint(self.body[2:4], h, use_reentrant=self.reentrant))


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant, overlaps):
    def act(member):
        optimizer = sgd(member.model.parameters())
        train(member, poseidon.overlap(optimizer, member.model) if overlaps else optimizer, 7)
        return values(member.model)

    for found in in_team(act, Checkpointed(reentrant), schemes={"*": "factors"}):
        assert_same(found, alone(7, sgd))


def test_autocast_gives_the_gradients_of_the_narrow_products():
    """Compared with the mean of what each worker gets by itself, to the rounding of bf16."""

    def run(model, rank):
        x, y = batch(0, rank)
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x.float()).float(), y)

    base = small().float()

    def act(member):
        for _ in range(PLANNED + 1):
            member.model.zero_grad()
            run(member.model, member.rank).backward()
        return grads(member.model), member.model(batch(0, 0)[0].float()).dtype

    for found, dtype in in_team(act, base, schemes={"*": "factors"}):
        expected = mean_grads(run, base)
        assert dtype == torch.float32
        for one, other in zip(found, expected, strict=True):
            assert float((one - other).norm()) <= 0.01 * float(other.norm())


def test_grad_scaler_works_without_overlap():
    def act(member):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = sgd(member.model.parameters())
        for step in range(6):
            optimizer.zero_grad()
            scaler.scale(member.loss(step)).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return values(member.model)

    for found in in_team(act):
        assert_same(found, alone(6, sgd))


@pytest.mark.parametrize("overlaps", [False, True])
def test_parameters_may_be_frozen_and_unfrozen(overlaps):
    def steps(model, optimizer, losses):
        for step in range(12):
            model[2].requires_grad_(not 4 <= step < 8)
            optimizer.zero_grad()
            losses(step).backward()
            optimizer.step()

    def act(member):
        optimizer = sgd(member.model.parameters())
        if overlaps:
            optimizer = poseidon.overlap(optimizer, member.model)
        steps(member.model.module, optimizer, member.loss)
        return values(member.model)

    model = copy.deepcopy(small())
    steps(model, sgd(model.parameters()), lambda step: sum(loss_of(model, step, r) for r in range(SIZE)) / SIZE)
    for found in in_team(act, schemes={"*": "factors"}):
        assert_same(found, values(model))


def test_freezing_on_one_worker_only_is_an_error_on_all():
    def act(member):
        member.loss(0).backward()
        if member.rank == 1:
            member.model.module[2].requires_grad_(False)
        with pytest.raises(WorkersDiffer, match=r"requires_grad.*same parameters in the same iteration"):
            member.loss(1).backward()

    in_team(act)


def test_a_model_that_was_changed_after_wrapping_is_refused():
    def act(member):
        member.model.module[2] = nn.Linear(16, 12).double()
        with pytest.raises(UsageError, match="change the model first, then wrap it"):
            member.loss(0)

    in_team(act)


def test_different_models_on_ranks_are_told_apart():
    def act(transport):
        width = 12 + transport.rank
        with pytest.raises(WorkersDiffer, match=r"model's parameters, line 1: 0.weight \(12, 6\).*rank 0.*\(13, 6\)"):
            Parallel(nn.Sequential(nn.Linear(6, width)), transport=transport)

    run_workers(2, act)


def test_rank_0_gives_values_and_buffers():
    def work(transport):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.fill_(transport.rank + 1)
        parallel = Parallel(model, transport=transport)
        found = [float(t.detach().double().mean()) for t in [*parallel.parameters(), *parallel.buffers()]]
        parallel.close()
        return found

    for found in run_workers(3, work):
        assert set(found) == {1.0}


def test_buffers_of_rank_0_go_to_all_before_the_next_forward_pass():
    base = filled(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).double())

    def act(member):
        for step in range(3):
            member.loss(step).backward()
        member.model.eval()
        with torch.no_grad():
            member.model(batch(0, 0)[0])
        return [buffer.clone() for buffer in member.model.buffers()]

    own = copy.deepcopy(base)
    for step in range(3):
        loss_of(own, step, 0)
    for found in in_team(act, base):
        assert_same(found, list(own.buffers()))


# -- states -----------------------------------------------------------------------------------------------------------
def test_state_dict_has_the_bare_names_and_takes_ddps():
    def act(member):
        state = member.model.state_dict()
        assert list(state) == list(small().state_dict())
        assert [name for name, _ in member.model.named_parameters()] == list(state)
        other = small(seed=3).state_dict()
        member.model.load_state_dict(other)
        assert_same(values(member.model), list(other.values()))
        member.model.load_state_dict({f"module.{name}": value for name, value in state.items()})
        assert_same(values(member.model), list(state.values()))
        outer = nn.ModuleDict({"net": member.model})
        assert list(outer.state_dict()) == [f"net.{name}" for name in state]
        outer.load_state_dict({f"net.{name}": value for name, value in other.items()})
        assert_same(values(member.model), list(other.values()))
        with pytest.raises(RuntimeError, match="Unexpected key"):
            member.model.load_state_dict({**state, "more": torch.zeros(1)})

    in_team(act)


def test_copies_of_the_model_are_nobodys_replicas():
    def act(member):
        train(member, sgd(member.model.parameters()), PLANNED + 1)
        copied = copy.deepcopy(member.model.module)
        memory = io.BytesIO()
        pickle.dump(member.model.module, memory)
        memory.seek(0)
        loaded = pickle.load(memory)
        x, _ = batch(0, 0)
        with torch.no_grad():
            for parameter in member.model.parameters():
                parameter.zero_()
        assert find_structure(copied).params["0.weight"].factors
        assert find_structure(loaded).params["0.weight"].factors
        for other in (copied, loaded):
            assert float(other(x).abs().sum()) > 0
            other(x).sum().backward()
            assert all(p.grad is not None for p in other.parameters())
        return True

    assert all(in_team(act, schemes={"*": "factors"}))


# -- structure --------------------------------------------------------------------------------------------------------
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 5)
        self.mix = nn.Linear(5, 5)
        self.out = nn.Linear(5, 10, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x):
        return self.out(self.mix(self.table(x)))


class ReadElsewhere(nn.Module):
    """The layer's weight is read a second time, by hand, and before the layer runs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 5)
        self.extra = nn.Linear(6, 6)

    def forward(self, x):
        early = F.linear(x, self.extra.weight)
        return self.second(torch.tanh(self.first(x) + early + self.extra(x)))


@pytest.mark.parametrize("overlaps", [False, True])
def test_weights_that_are_read_elsewhere_are_exact_and_dense_with_a_reason(overlaps):
    base = filled(ReadElsewhere().double())

    def act(member):
        optimizer = sgd(member.model.parameters())
        train(member, poseidon.overlap(optimizer, member.model) if overlaps else optimizer, 8)
        reasons = {name: unit.reason for unit in member.model.plan.units for name in unit.params}
        return values(member.model), reasons["extra.weight"], member.model.plan.unit_of()["extra.weight"].scheme

    for found, reason, scheme in in_team(act, base):
        assert scheme.value == "ring"
        assert "'(model)' reads it besides its own layer" in reason
        assert_same(found, alone(8, sgd, base))


def test_tied_tables_say_why_they_are_dense():
    def act(member):
        for step in range(PLANNED + 1):
            member.model.zero_grad()
            member.model(torch.tensor([[step, 2]])).sum().backward()
        return str(member.model.plan), member.model.plan

    with pytest.raises(UsageError, match=r"'table' can travel by rows: tied: 'table' and 'out' share it"):
        in_team(act, filled(Tied().double()), schemes={"table": "rows"})
    for text, plan in in_team(act, filled(Tied().double())):
        assert plan.unit_of()["table.weight"].scheme.value == "ring"
        assert "tied: 'table' and 'out' share it" in plan.unit_of()["table.weight"].reason
        assert "RING" in text


def test_schemes_that_do_not_exist_here_are_refused():
    for schemes, text in (
        ({"0": "server"}, "one of ring, doubling, factors, rows"),
        ({"nothing.*": "ring"}, "no parameter that learns matches 'nothing"),
        ({"0": "rows"}, "nothing that matches '0' can travel by rows"),
    ):
        with pytest.raises(UsageError, match=text):
            Parallel(small(), schemes=schemes)


def test_compiled_modules_are_one_piece():
    def act(member):
        train(member, sgd(member.model.parameters()), 6)
        found = {name: unit for unit in member.model.plan.units for name in unit.params}
        return values(member.model), found

    def prepare(model):  # by each worker itself: a copy of a compiled module is not compiled
        model[2].compile(backend="eager")

    for found, units in in_team(act, prepare=prepare, schemes={"0": "factors", "4": "factors"}):
        assert units["0.weight"].scheme.value == "factors"
        assert units["2.weight"].scheme.value == "ring"
        assert "inside a compiled or scripted module" in units["2.weight"].reason
        assert_same(found, alone(6, sgd))


@pytest.mark.parametrize("form", ["before", "in place", "around"])
@pytest.mark.parametrize("overlaps", [False, True])
def test_a_whole_model_may_be_compiled(form, overlaps):
    """Before it is wrapped, what torch.compile makes of it runs in every iteration; Parallel itself never compiles."""
    torch._dynamo.reset()
    num_runs = [0] * SIZE

    def work(transport):
        def backend(graph, inputs):
            def run(*args):
                num_runs[transport.rank] += 1
                return graph.forward(*args)

            return run

        model = small()
        if form == "in place":
            model.compile(backend=backend)
        inner = torch.compile(model, backend=backend) if form == "before" else model
        parallel = Parallel(inner, transport=transport, bandwidth="100mbit")
        called = torch.compile(parallel, backend=backend) if form == "around" else parallel
        optimizer = sgd(parallel.parameters())
        if overlaps:
            optimizer = poseidon.overlap(optimizer, parallel)
        for step in range(6):
            optimizer.zero_grad()
            loss_of(called, step, transport.rank).backward()
            optimizer.step()
        found, keys = values(parallel), list(parallel.state_dict())
        transport.barrier(30.0)
        parallel.close()
        return found, keys

    prefix = "_orig_mod." if form == "before" else ""
    for found, keys in run_workers(SIZE, work, timeout_s=60):
        assert_same(found, alone(6, sgd))
        assert keys == [prefix + name for name in small().state_dict()]
    assert sum(num_runs) == (0 if form == "around" else 6 * SIZE)


def test_one_worker_alone_needs_nobody():
    model = Parallel(small())
    optimizer = poseidon.overlap(sgd(model.parameters()), model)
    optimizer.zero_grad()
    loss_of(model, 0, 0).backward()
    optimizer.step()
    poseidon.wait(model)
    assert all(unit.scheme.value == "local" for unit in model.plan.units)
    assert list(model.state_dict()) == list(small().state_dict())


def test_what_cannot_be_wrapped_says_why():
    with pytest.raises(UsageError, match="wrapped in Parallel already"):
        Parallel(Parallel(small()))
    with pytest.raises(UsageError, match="no parameter of the model learns"):
        Parallel(small().requires_grad_(False))
    with pytest.raises(UsageError, match="device_ids must name the one device"):
        Parallel(small(), device_ids=[3])
    with pytest.raises(UsageError, match=r"for a model wrapped in poseidon\.Parallel"):
        poseidon.wait(small())


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    notes: dict


class Answering(nn.Module):
    """Gives a dataclass; has a parameter without elements, and a scalar."""

    def __init__(self):
        super().__init__()
        self.body, self.empty, self.scale = small(), nn.Parameter(torch.empty(0)), nn.Parameter(torch.tensor(1.5))
        self.double()

    def forward(self, x):
        return Answer(self.body(x) * self.scale, {"none": None})


@pytest.mark.parametrize("overlaps", [False, True])
def test_outputs_and_parameters_may_be_odd(overlaps):
    def loss(model, step, rank):
        x, y = batch(step, rank)
        return F.cross_entropy(model(x).logits, y)

    def act(member):
        optimizer = torch.optim.SGD(member.model.parameters(), 0.1)
        if overlaps:
            optimizer = poseidon.overlap(optimizer, member.model)
        for step in range(6):
            optimizer.zero_grad()
            loss(member.model, step, member.rank).backward()
            optimizer.step()
        return values(member.model)

    model = Answering()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(6):
        optimizer.zero_grad()
        (sum(loss(model, step, rank) for rank in range(SIZE)) / SIZE).backward()
        optimizer.step()
    for found in in_team(act, Answering()):
        assert_same(found, values(model))


def test_complex_parameters_are_refused():
    model = nn.Linear(2, 2)
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UsageError, match="'phase' is complex"):
        Parallel(model)
