"""overlap: the same trajectory, later; and whatever would read gradients or parameters too early is served or told."""

from __future__ import annotations

import copy
import gc
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import poseidon
from poseidon.errors import UsageError
from poseidon.parallel.piecemeal import PER_PARAMETER
from tests.parallel.team import SIZE, alone, assert_same, filled, in_team, loss_of, small, values

SETTINGS = {"SGD": {"momentum": 0.9, "nesterov": True}, "SparseAdam": None, "Muon": None}
OPTIONS = (
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {"amsgrad": True, "maximize": True, "foreach": True}),
    ("AdamW", {"weight_decay": 0.1, "fused": True}),
    ("SGD", {"maximize": True, "weight_decay": 0.1, "foreach": True}),
    ("SGD", {"momentum": 0.5, "dampening": 0.1, "fused": True}),
    ("RMSprop", {"centered": True, "momentum": 0.5, "foreach": False}),
    ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("Adagrad", {"weight_decay": 0.1, "maximize": True}),
)


def steps(member, optimizer, number=8, between=lambda step: None):
    for step in range(number):
        optimizer.zero_grad()
        member.loss(step).backward()
        optimizer.step()
        between(step)


@pytest.mark.parametrize("kind", [k for k in PER_PARAMETER if SETTINGS.get(k.__name__, {}) is not None], ids=str)
def test_every_per_parameter_optimizer_of_torch_ends_where_it_does_alone(kind):
    def make(params):
        return kind(params, lr=0.01, **(SETTINGS.get(kind.__name__) or {}))

    def act(member):
        optimizer = poseidon.overlap(make(member.model.parameters()), member.model)
        assert not optimizer.falls_back
        steps(member, optimizer)
        return values(member.model)

    for found in in_team(act):
        assert_same(found, alone(8, make), rtol=1e-8)


@pytest.mark.parametrize(("kind", "options"), OPTIONS, ids=str)
def test_with_their_options_too(kind, options):
    def make(params):
        return getattr(torch.optim, kind)(params, lr=0.01, **options)

    def act(member):
        optimizer = poseidon.overlap(make(member.model.parameters()), member.model)
        assert not optimizer.falls_back
        steps(member, optimizer)
        return values(member.model)

    for found in in_team(act):
        assert_same(found, alone(8, make), rtol=1e-8)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon yet")
def test_muon_takes_matrices_whole():
    """It makes updates orthogonal, in bf16, which tells sums in another order apart: replicas are alike to the bit."""
    base = filled(nn.Sequential(nn.Linear(6, 16, bias=False), nn.Linear(16, 5, bias=False)).double())

    def make(params):
        return torch.optim.Muon(params, lr=0.01)

    def act(member):
        optimizer = poseidon.overlap(make(member.model.parameters()), member.model)
        assert not optimizer.falls_back
        steps(member, optimizer)
        return values(member.model)

    first, *others = in_team(act, base)
    for found in others:
        assert_same(found, first, rtol=0)
    for one, other, start in zip(first, alone(8, make, base), values(base), strict=True):
        assert float((one - other).norm()) < 0.02 * float((other - start).norm())


def test_others_fall_back_with_a_reason():
    def make(params):
        return torch.optim.LBFGS(params, lr=0.1, max_iter=1)

    def act(member):
        with pytest.warns(UserWarning, match="LBFGS is not known to update each parameter by itself"):
            optimizer = poseidon.overlap(make(member.model.parameters()), member.model)
        for step in range(5):

            def closure(step=step):
                optimizer.zero_grad()
                loss = member.loss(step)
                loss.backward()
                return loss

            optimizer.step(closure)
        return values(member.model)

    model = copy.deepcopy(small())
    optimizer = make(model.parameters())
    for step in range(5):

        def closure(step=step):
            optimizer.zero_grad()
            loss = sum(loss_of(model, step, rank) for rank in range(SIZE)) / SIZE
            loss.backward()
            return loss

        optimizer.step(closure)
    with warnings.catch_warnings():
        for found in in_team(act, size=1 if SIZE == 1 else SIZE):
            assert_same(found, values(model))


def test_clipping_by_max_norm_is_torchs():
    def act(member):
        optimizer = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.5), member.model, max_norm=0.05)
        norms = []
        steps(member, optimizer, between=lambda step: norms.append(float(optimizer.norm)))
        return values(member.model), norms

    model = copy.deepcopy(small())
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    norms = []
    for step in range(8):
        optimizer.zero_grad()
        (sum(loss_of(model, step, rank) for rank in range(SIZE)) / SIZE).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        optimizer.step()
    assert max(norms) > 0.05
    for found, own in in_team(act):
        assert_same(found, values(model))
        assert own == pytest.approx(norms, rel=1e-9)


def test_groups_and_schedulers():
    def make(model):
        first, *others = model.parameters()
        groups = [{"params": [first], "lr": 0.3}, {"params": others, "weight_decay": 0.1}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.5)

    def act(member):
        inner = make(member.model)
        optimizer = poseidon.overlap(inner, member.model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            steps(member, optimizer, between=lambda step: schedule.step())
        return values(member.model), [group["lr"] for group in inner.param_groups]

    model = copy.deepcopy(small())
    optimizer = make(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(8):
        optimizer.zero_grad()
        (sum(loss_of(model, step, rank) for rank in range(SIZE)) / SIZE).backward()
        optimizer.step()
        schedule.step()
    for found, rates in in_team(act):
        assert_same(found, values(model))
        assert rates == [group["lr"] for group in optimizer.param_groups]


def test_accumulation_under_no_sync():
    def act(member):
        optimizer = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model)
        steps(member, optimizer, 5)
        for step in range(3):
            optimizer.zero_grad()
            with member.model.no_sync():
                member.loss(2 * step).backward()
            member.loss(2 * step + 1).backward()
            optimizer.step()
        return values(member.model)

    model = copy.deepcopy(small())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for group in [(0,), (1,), (2,), (3,), (4,), (0, 1), (2, 3), (4, 5)]:
        optimizer.zero_grad()
        (sum(loss_of(model, step, rank) for step in group for rank in range(SIZE)) / SIZE).backward()
        optimizer.step()
    for found in in_team(act):
        assert_same(found, values(model))


def test_rows_of_a_table_are_all_that_plain_sgd_touches():
    base = filled(nn.Sequential(nn.Embedding(20, 4, padding_idx=1), nn.Flatten(), nn.Linear(8, 5)).double())

    def loss(model, step, rank):
        return F.cross_entropy(model(torch.tensor([[step, rank], [1, step]])), torch.tensor([step % 5, rank]))

    def act(member):
        optimizer = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model)
        for step in range(8):
            optimizer.zero_grad()
            loss(member.model, step, member.rank).backward()
            optimizer.step()
        return values(member.model), member.model.plan.unit_of()["0.weight"].scheme.value

    model = copy.deepcopy(base)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(8):
        optimizer.zero_grad()
        (sum(loss(model, step, rank) for rank in range(SIZE)) / SIZE).backward()
        optimizer.step()
    for found, scheme in in_team(act, base, schemes={"0": "rows"}):
        assert scheme == "rows"
        assert_same(found, values(model))


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.SparseAdam], ids=str)
def test_sparse_tables_stay_sparse(overlaps, kind):
    base = filled(nn.Sequential(nn.Embedding(20, 5, sparse=True)).double())

    def loss(model, step, rank):
        return model(torch.tensor([step, rank, 3])).square().sum()

    def act(member):
        optimizer = kind(list(member.model.parameters()), lr=0.1)
        if overlaps:
            optimizer = poseidon.overlap(optimizer, member.model)
        for step in range(6):
            optimizer.zero_grad()
            loss(member.model, step, member.rank).backward()
            if not overlaps:
                assert member.model.module[0].weight.grad.is_sparse
            optimizer.step()
        return values(member.model)

    model = copy.deepcopy(base)
    optimizer = kind(list(model.parameters()), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        (sum(loss(model, step, rank) for rank in range(SIZE)) / SIZE).backward()
        optimizer.step()
    for found in in_team(act, base):
        assert_same(found, values(model))


# -- what reads parameters or state ---------------------------------------------------------------------------------
def test_states_and_averages_are_up_to_date():
    def act(member):
        inner = torch.optim.AdamW(member.model.parameters(), 0.01)
        optimizer = poseidon.overlap(inner, member.model)
        average = AveragedModel(member.model.module, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        states = []

        def between(step):
            average.update_parameters(member.model)
            states.append([t.clone() for t in member.model.state_dict().values()])
            states.append([t.clone() for t in member.model.module.state_dict().values()])

        steps(member, optimizer, between=between)
        poseidon.wait(member.model)
        return states, values(average.module), optimizer.state_dict()

    model = copy.deepcopy(small())
    inner = torch.optim.AdamW(model.parameters(), 0.01)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    expected = []
    for step in range(8):
        inner.zero_grad()
        (sum(loss_of(model, step, rank) for rank in range(SIZE)) / SIZE).backward()
        inner.step()
        average.update_parameters(model)
        expected += [values(model), values(model)]
    for states, averaged, state in in_team(act):
        for own, other in zip(states, expected, strict=True):
            assert_same(own, other, rtol=1e-8)
        assert_same(averaged, values(average.module), rtol=1e-8)
        moments = inner.state_dict()["state"]
        assert state["state"].keys() == moments.keys()
        for key, own in state["state"].items():
            assert_same(list(own.values()), list(moments[key].values()), rtol=1e-6)


def test_the_wrapped_optimizers_own_state_waits_too():
    """Rank 1 holds its gradients back; rank 0's moments must be those after the step all the same."""
    may_go = threading.Event()

    def act(member):
        inner = torch.optim.AdamW(member.model.parameters(), 0.01)
        optimizer = poseidon.overlap(inner, member.model)
        steps(member, optimizer, 5)
        optimizer.zero_grad()
        loss = member.loss(5)
        if member.rank == 1:
            assert may_go.wait(30)
        loss.backward()
        optimizer.step()
        if member.rank == 0:
            threading.Timer(0.2, may_go.set).start()
        state = copy.deepcopy(inner.state_dict()["state"])
        inner.load_state_dict(inner.state_dict())
        return state

    model = copy.deepcopy(small())
    alone_ = torch.optim.AdamW(model.parameters(), 0.01)
    for step in range(6):
        alone_.zero_grad()
        (sum(loss_of(model, step, rank) for rank in range(SIZE)) / SIZE).backward()
        alone_.step()
    for state in in_team(act):
        for key, own in alone_.state_dict()["state"].items():
            assert_same(list(state[key].values()), list(own.values()), rtol=1e-8)


def test_hooks_around_a_step_run_once_and_see_what_it_did():
    def act(member):
        optimizer = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model)
        calls, seen = [], []
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: seen.append(values(member.model.module)))
        steps(member, optimizer, 6)
        return calls, seen

    for calls, seen in in_team(act):
        assert calls == ["before"] * 6
        for number, found in enumerate(seen, 1):
            assert_same(found, alone(number, lambda params: torch.optim.SGD(params, 0.1)))


@pytest.mark.parametrize("stepped", [True, False])
def test_a_closed_model_and_its_optimizer_go_on_alone(stepped):
    def act(member):
        optimizer = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model)
        steps(member, optimizer, 5)
        optimizer.zero_grad()
        member.loss(5).backward()
        if stepped:
            optimizer.step()
        member.model.close()
        if not stepped:
            optimizer.step()
        together = values(member.model)
        assert_same(list(member.model.module.state_dict().values()), together)
        optimizer.zero_grad()
        member.loss(6).backward()
        optimizer.step()
        return together, values(member.model)

    for rank, (together, found) in enumerate(in_team(act)):
        assert_same(together, alone(6, lambda params: torch.optim.SGD(params, 0.1)))
        model = copy.deepcopy(small())
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), together, strict=True):
                parameter.copy_(value)
        loss_of(model, 6, rank).backward()
        assert_same(found, [p.detach() - 0.1 * p.grad for p in model.parameters()])


def test_a_saved_state_continues_the_trajectory():
    def act(member):
        optimizer = poseidon.overlap(torch.optim.AdamW(member.model.parameters(), 0.01), member.model)
        steps(member, optimizer, 3)
        saved = copy.deepcopy((member.model.state_dict(), optimizer.state_dict()))
        steps(member, optimizer, 2)
        member.model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        for step in range(3, 8):
            optimizer.zero_grad()
            member.loss(step).backward()
            optimizer.step()
        return values(member.model)

    for found in in_team(act):
        assert_same(found, alone(8, lambda params: torch.optim.AdamW(params, 0.01)), rtol=1e-8)


# -- what would be wrong ----------------------------------------------------------------------------------------------
def refused(match, misuse, model=None, **options):
    def act(member):
        optimizer = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model)
        for step in range(5):
            optimizer.zero_grad()
            member.loss(step).backward()
            optimizer.step()
        with pytest.raises(UsageError, match=match):
            misuse(member, optimizer)
        poseidon.wait(member.model)

    in_team(act, model, **options)


def test_gradients_cannot_be_clipped_by_hand():
    def misuse(member, optimizer):
        optimizer.zero_grad()
        member.loss(0).backward()
        nn.utils.clip_grad_norm_(member.model.parameters(), 1.0)

    refused(r"gradient was read.*max_norm", misuse)


def test_grad_scaler_is_told():
    def misuse(member, optimizer):
        scaler = torch.amp.GradScaler("cpu")
        optimizer.zero_grad()
        scaler.scale(member.loss(0)).backward()
        scaler.step(optimizer)

    refused(r"GradScaler.*without overlap", misuse)


def test_the_inner_optimizer_must_not_step():
    def misuse(member, optimizer):
        optimizer.zero_grad()
        member.loss(0).backward()
        optimizer.optimizer.step()

    refused("step what that returned", misuse)


def test_gradients_must_be_zeroed_between_steps():
    def misuse(member, optimizer):
        member.loss(0).backward()

    refused(r"call zero_grad\(\) after each step", misuse)


def test_gradients_must_not_be_dropped_between_backward_and_step():
    def misuse(member, optimizer):
        optimizer.zero_grad()
        member.loss(0).backward()
        optimizer.zero_grad()
        optimizer.step()

    refused(r"changed or zeroed between backward and step", misuse)


def test_a_step_needs_a_pass_that_counts():
    def misuse(member, optimizer):
        optimizer.zero_grad()
        with member.model.no_sync():
            member.loss(0).backward()
        optimizer.step()

    refused(r"ran under no_sync\(\)", misuse)


def zero_by_data(member, optimizer):
    for parameter in member.model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()


@pytest.mark.parametrize(
    "zero",
    [
        lambda member, optimizer: optimizer.zero_grad(set_to_none=False),
        lambda member, optimizer: member.model.zero_grad(set_to_none=False),
        zero_by_data,
    ],
    ids=["optimizer", "model", "data"],
)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=str)
def test_zeroing_in_place_after_a_step_is_as_good_as_none(zero, kind):
    def act(member):
        optimizer = poseidon.overlap(kind(member.model.parameters(), 0.01), member.model)
        for step in range(8):
            zero(member, optimizer)
            assert all(p.grad is None or float(p.grad.abs().sum()) == 0 for p in member.model.parameters())
            member.loss(step).backward()
            optimizer.step()
        return values(member.model), {unit.scheme.value for unit in member.model.plan.units}

    for found, schemes in in_team(act, schemes={"*": "factors"}):
        assert_same(found, alone(8, lambda params: kind(params, 0.01)), rtol=1e-8)
        assert schemes == {"factors"}


def test_zeroing_in_place_before_the_step_is_refused():
    def misuse(member, optimizer):
        optimizer.zero_grad()
        member.loss(0).backward()
        optimizer.zero_grad(set_to_none=False)

    refused(r"zero_grad\(\) comes before backward or after step", misuse)


def test_an_iteration_may_be_skipped():
    def act(member):
        optimizer = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model)
        for step in range(8):
            optimizer.zero_grad()
            member.loss(step).backward()
            if step != 5:
                optimizer.step()
        return values(member.model)

    model = copy.deepcopy(small())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in (0, 1, 2, 3, 4, 6, 7):
        optimizer.zero_grad()
        (sum(loss_of(model, step, rank) for rank in range(SIZE)) / SIZE).backward()
        optimizer.step()
    for found in in_team(act):
        assert_same(found, values(model))


def test_strange_optimizers_and_models_are_refused():
    with pytest.raises(UsageError, match="wrap it first"):
        poseidon.overlap(torch.optim.SGD(small().parameters(), 0.1), small())

    def act(member):
        with pytest.raises(UsageError, match="do not belong to the model"):
            poseidon.overlap(torch.optim.SGD(small().parameters(), 0.1), member.model)
        with pytest.raises(UsageError, match=r"lacks 2 parameter\(s\) of the model"):
            poseidon.overlap(torch.optim.SGD(list(member.model.parameters())[:-2], 0.1), member.model)
        with pytest.raises(UsageError, match="max_norm must be above 0"):
            poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model, max_norm=0)
        handle = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model)
        with pytest.raises(UsageError, match="overlaps already"):
            poseidon.overlap(handle, member.model)

    in_team(act)


def test_backward_and_step_do_not_wait_for_the_network():
    """Rank 1 begins its backward pass only when rank 0's step has returned: had that waited, both would for ever."""
    has_stepped = threading.Event()

    def act(member):
        optimizer = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model)
        steps(member, optimizer, 5)
        optimizer.zero_grad()
        loss = member.loss(5)
        if member.rank == 1:
            assert has_stepped.wait(30)
        loss.backward()
        optimizer.step()
        has_stepped.set()
        return values(member.model)

    for found in in_team(act):
        assert_same(found, alone(6, lambda params: torch.optim.SGD(params, 0.1)))


@pytest.mark.parametrize("scheme", ["ring", "factors"])
def test_gradients_are_gone_once_they_are_applied(scheme):
    """Without the garbage collector's help: what it has not looked at yet may be gigabytes."""

    def num_tensors(shape):
        return sum(type(found) is torch.Tensor and found.shape == shape for found in gc.get_objects())

    def act(member):
        optimizer = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.01), member.model)
        counts = []
        for _ in range(2):
            steps(member, optimizer)
            poseidon.wait(member.model)
            optimizer.zero_grad()
            counts.append(num_tensors((16, 6)))
        return counts

    gc.collect()
    gc.disable()
    try:
        for first, second in in_team(act, schemes={"*": scheme}):
            assert second <= first + SIZE, "not one more for each of eight iterations"
    finally:
        gc.enable()
