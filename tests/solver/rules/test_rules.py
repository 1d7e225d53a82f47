"""Update rules against their formulas, written again element by element in plain Python."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from poseidon.errors import SolverError
from poseidon.solver.rules import RULES, Hyper, rule_for
from poseidon.spec import caffe_pb2

HYPER = Hyper(
    iteration=0, rate=0.3, momentum=0.8, momentum2=0.95, delta=1e-3, rms_decay=0.9, weight_decay=0.04, iter_size=3
)
SHAPES = [(4, 3), (4,), (2, 3, 2), (), (5, 1)]
MULTIPLIERS = [(1.0, 1.0), (2.0, 0.0), (1.0, 1.0), (0.5, 3.0), (0.0, 1.0)]


# -- the formulas, for one number -----------------------------------------------------------------------------------
def sgd(g, h, rate, hyper):
    velocity = hyper.momentum * h[0] + rate * g
    return velocity, [velocity]


def nesterov(g, h, rate, hyper):
    velocity = hyper.momentum * h[0] + rate * g
    return (1 + hyper.momentum) * velocity - hyper.momentum * h[0], [velocity]


def adagrad(g, h, rate, hyper):
    total = h[0] + g * g
    return rate * g / (math.sqrt(total) + hyper.delta), [total]


def rmsprop(g, h, rate, hyper):
    mean = hyper.rms_decay * h[0] + (1 - hyper.rms_decay) * g * g
    return rate * g / (math.sqrt(mean) + hyper.delta), [mean]


def adadelta(g, h, rate, hyper):
    gradients = hyper.momentum * h[0] + (1 - hyper.momentum) * g * g
    step = g * math.sqrt((h[1] + hyper.delta) / (gradients + hyper.delta))
    return rate * step, [gradients, hyper.momentum * h[1] + (1 - hyper.momentum) * step * step]


def adam(g, h, rate, hyper):
    t = hyper.iteration + 1
    mean = hyper.momentum * h[0] + (1 - hyper.momentum) * g
    square = hyper.momentum2 * h[1] + (1 - hyper.momentum2) * g * g
    correction = math.sqrt(1 - hyper.momentum2**t) / (1 - hyper.momentum**t)
    return rate * correction * mean / (math.sqrt(square) + hyper.delta), [mean, square]


FORMULAS = {
    "SGD": sgd,
    "Nesterov": nesterov,
    "AdaGrad": adagrad,
    "RMSProp": rmsprop,
    "AdaDelta": adadelta,
    "Adam": adam,
}


def rule_of(name):
    return RULES[name]()


def slots_of(rule, dtype=torch.float64, shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    return [
        rule.slot(f"p{i}", torch.randn(shape, generator=generator, dtype=dtype), rate, decay)
        for i, (shape, (rate, decay)) in enumerate(zip(shapes, MULTIPLIERS, strict=True))
    ]


def grads_of(slots, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(slot.value.shape, generator=generator, dtype=slot.value.dtype) for slot in slots]


@pytest.mark.parametrize("regularization", ["L2", "L1"])
@pytest.mark.parametrize("name", RULES)
def test_trajectory_follows_the_formula(name, regularization):
    rule, formula = rule_of(name), FORMULAS[name]
    slots = slots_of(rule)
    values = [slot.value.flatten().tolist() for slot in slots]
    histories = [[[0.0] * rule.num_histories for _ in flat] for flat in values]
    for iteration in range(6):
        hyper = replace(HYPER, iteration=iteration, rate=0.3 / (iteration + 1), regularization=regularization)
        grads = grads_of(slots, 100 + iteration)
        flat_grads = [grad.flatten().tolist() for grad in grads]
        rule.update(slots, grads, hyper)
        for s, slot in enumerate(slots):
            for e, gradient in enumerate(flat_grads[s]):
                w = values[s][e]
                toward = w if regularization == "L2" else float(np.sign(w))
                g = gradient / 3 + 0.04 * slot.decay_mult * toward
                update, histories[s][e] = formula(g, histories[s][e], hyper.rate * slot.rate_mult, hyper)
                values[s][e] = w - update
            np.testing.assert_allclose(slot.value.flatten(), values[s], rtol=1e-12, atol=1e-12)
            for k in range(rule.num_histories):
                expected = [history[k] for history in histories[s]]
                np.testing.assert_allclose(slot.history[k].flatten(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_one_by_one_in_any_order_gives_the_bits_of_all_together(name):
    rule = rule_of(name)
    shapes = [(4, 3), (33,), (129, 67), (), (5, 1)]  # more and less than a vector register, with remainders
    together, apart = slots_of(rule, torch.float32, shapes), slots_of(rule, torch.float32, shapes)
    order = [3, 0, 4, 2, 1]
    for iteration in range(4):
        hyper = replace(HYPER, iteration=iteration)
        rule.update(together, grads_of(together, iteration), hyper)
        grads = grads_of(apart, iteration)
        for i in order:
            rule.update([apart[i]], [grads[i]], hyper)
    for one, other in zip(together, apart, strict=True):
        assert torch.equal(one.value, other.value)
        assert all(torch.equal(a, b) for a, b in zip(one.history, other.history, strict=True))


@pytest.mark.parametrize("name", RULES)
def test_shards_of_a_parameter_move_like_the_whole(name):
    rule = rule_of(name)
    generator = torch.Generator().manual_seed(1)
    whole = rule.slot("whole", torch.randn(1000, generator=generator))
    cuts = [slice(0, 300), slice(300, 704), slice(704, 1000)]
    memory = whole.value.clone()
    shards = [rule.slot(f"shard {i}", memory[cut]) for i, cut in enumerate(cuts)]
    for iteration in range(3):
        gradient = torch.randn(1000, generator=generator)
        hyper = replace(HYPER, iteration=iteration)
        rule.update(shards, [gradient[cut].clone() for cut in cuts], hyper)
        rule.update([whole], [gradient], hyper)
    torch.testing.assert_close(memory, whole.value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", RULES)
def test_keep_update_leaves_what_was_subtracted_in_the_gradient(name):
    rule = rule_of(name)
    slots = slots_of(rule)
    before = [slot.value.clone() for slot in slots]
    grads = grads_of(slots, 7)
    rule.update(slots, grads, HYPER, keep_update=True)
    for slot, old, grad in zip(slots, before, grads, strict=True):
        torch.testing.assert_close(old - grad, slot.value, rtol=0, atol=0)


@pytest.mark.parametrize("name", RULES)
def test_a_frozen_slot_rests_exactly_where_the_rule_says_so(name):
    rule = rule_of(name)
    slot = rule.slot("frozen", torch.ones(3), rate_mult=0.0)
    rule.update([slot], [torch.zeros(3)], replace(HYPER, weight_decay=0.5))
    assert torch.equal(slot.value, torch.ones(3))
    still = not any(bool(history.any()) for history in slot.history)
    assert still == rule.rests_when_frozen


@pytest.mark.parametrize("name", RULES)
def test_parameters_of_autograd_can_be_slots(name):
    rule = rule_of(name)
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    slot = rule.slot("p", parameter)
    assert not any(history.requires_grad for history in slot.history)
    rule.update([slot], [torch.ones(2, 2)], HYPER)
    assert parameter.requires_grad
    assert parameter.grad_fn is None
    assert not torch.equal(parameter.detach(), torch.ones(2, 2))


def test_channels_last_memory_is_kept_by_the_history():
    value = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    slot = rule_of("Adam").slot("conv", value)
    assert all(history.stride() == value.stride() for history in slot.history)


# -- settings -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", RULES)
def test_rules_are_found_by_caffes_names(name):
    assert type(rule_for(caffe_pb2.SolverParameter(type=name))) is RULES[name]
    assert RULES[name].type == name


def test_caffes_six_rules_are_there():
    assert set(RULES) == {"SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"} == set(FORMULAS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "Adagrad"}, r"solver type is 'Adagrad' \(did you mean 'AdaGrad'\?\), expected one of: SGD, Nesterov"),
        ({"type": "AdaGrad", "momentum": 0.9}, "AdaGrad has no momentum, got momentum: 0.9"),
        ({"type": "RMSProp", "momentum": 0.5}, "RMSProp has no momentum, got momentum: 0.5"),
        ({"type": "RMSProp", "rms_decay": 1}, "rms_decay must be at least 0 and below 1, got 1"),
        ({"type": "RMSProp", "rms_decay": -0.5}, "rms_decay must be at least 0 and below 1, got -0.5"),
        ({"type": "Adam", "momentum2": 1}, "Adam needs momentum2 of at least 0 and below 1, got 1"),
        ({"weight_decay": 0.1, "regularization_type": "L3"}, "regularization_type is 'L3', expected L2 or L1"),
        ({"type": "Adam", "weight_decay": 1, "regularization_type": "l2"}, "regularization_type is 'l2'"),
    ],
)
def test_settings_a_rule_cannot_work_with(fields, message):
    with pytest.raises(SolverError, match=message):
        rule_for(caffe_pb2.SolverParameter(**fields))


def test_an_unknown_regularization_without_decay_is_nobodys_problem():
    rule_for(caffe_pb2.SolverParameter(regularization_type="none"))
