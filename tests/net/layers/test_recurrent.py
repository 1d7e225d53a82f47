"""LSTM, RNN and LSTMUnit against step-by-step NumPy loops: resets, carried states, changing shapes, and refusals."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from poseidon.net.registry import layer_types
from tests.net.layers.build import build

FILLERS = 'weight_filler { type: "uniform" min: -0.6 max: 0.6 } bias_filler { type: "uniform" min: -0.5 max: 0.5 }'


def recurrent(kind: str, *shapes: tuple[int, ...], size: int = 3, expose: bool = False, tops: int = 1):
    bottoms = " ".join(f'bottom: "b{i}"' for i in range(len(shapes)))
    outputs = " ".join(f'top: "t{i}"' for i in range(tops))
    options = f"recurrent_param {{ num_output: {size} expose_hidden: {str(expose).lower()} {FILLERS} }}"
    return build(f'type: "{kind}" {bottoms} {outputs} {options}', *shapes)


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def continued(num_steps: int, num_streams: int, *breaks: tuple[int, int]) -> torch.Tensor:
    cont = torch.ones(num_steps, num_streams, dtype=torch.float64)
    for place in breaks:
        cont[place] = 0
    return cont


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


def arrays_of(layer) -> list[np.ndarray]:
    return [layer.param(i).detach().numpy() for i in range(layer.num_params)]


def lstm_by_loop(layer, x, cont, h, c, static=None):
    """One stream and one step at a time. Gates stand in the order i, f, o, g."""
    blobs = arrays_of(layer)
    w_x, b, w_h = blobs[0], blobs[1], blobs[-1]
    h, c = h.copy(), c.copy()
    size = h.shape[1]
    out = np.empty((*x.shape[:2], size))
    for t in range(x.shape[0]):
        for n in range(x.shape[1]):
            gates = w_x @ x[t, n].ravel() + b + w_h @ (cont[t, n] * h[n])
            if static is not None:
                gates = gates + blobs[2] @ static[n].ravel()
            i, f, o = (sigmoid(gates[k * size : (k + 1) * size]) for k in range(3))
            c[n] = cont[t, n] * f * c[n] + i * np.tanh(gates[3 * size :])
            h[n] = o * np.tanh(c[n])
            out[t, n] = h[n]
    return out, h, c


def rnn_by_loop(layer, x, cont, h, static=None):
    blobs = arrays_of(layer)
    w_x, b, w_h, w_o, b_o = blobs[0], blobs[1], *blobs[-3:]
    h = h.copy()
    out = np.empty((*x.shape[:2], h.shape[1]))
    for t in range(x.shape[0]):
        for n in range(x.shape[1]):
            total = w_x @ x[t, n].ravel() + b + w_h @ (cont[t, n] * h[n])
            if static is not None:
                total = total + blobs[2] @ static[n].ravel()
            h[n] = np.tanh(total)
            out[t, n] = np.tanh(w_o @ h[n] + b_o)
    return out, h


# -- values ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("num_inputs", [2, 40])  # narrow and wide inputs take different ways
@pytest.mark.parametrize(
    "cont",
    [
        continued(4, 2),
        continued(4, 2, (0, 0), (0, 1)),
        continued(4, 2, (0, 1)),
        continued(4, 2, (2, 0), (3, 1)),
        continued(4, 2) * 0.5,
    ],
    ids=["unbroken", "all begin", "one begins", "broken", "faded"],
)
def test_lstm_carries_its_states_from_pass_to_pass(num_inputs, cont):
    layer = recurrent("LSTM", (4, 2, num_inputs), (4, 2))
    h, c = np.zeros((2, 3)), np.zeros((2, 3))
    for step in range(3):
        x = values(4, 2, num_inputs, seed=step)
        expected, h, c = lstm_by_loop(layer, x.numpy(), cont.numpy(), h, c)
        np.testing.assert_allclose(layer(x, cont).detach().numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("breaks", [(), ((2, 0),)], ids=["unbroken", "broken"])
def test_rnn_carries_its_state_from_pass_to_pass(breaks):
    layer = recurrent("RNN", (4, 2, 5), (4, 2))
    cont, h = continued(4, 2, *breaks), np.zeros((2, 3))
    for step in range(3):
        x = values(4, 2, 5, seed=step)
        expected, h = rnn_by_loop(layer, x.numpy(), cont.numpy(), h)
        np.testing.assert_allclose(layer(x, cont).detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_static_inputs_of_many_axes():
    x, cont, static = values(3, 2, 2, 3), continued(3, 2, (1, 1)), values(2, 2, 2, seed=2)
    shapes = (3, 2, 2, 3), (3, 2), (2, 2, 2)
    lstm, rnn = recurrent("LSTM", *shapes), recurrent("RNN", *shapes)
    assert lstm.param_shapes == [(12, 6), (12,), (12, 4), (12, 3)]
    assert rnn.param_shapes == [(3, 6), (3,), (3, 4), (3, 3), (3, 3), (3,)]
    zeros = np.zeros((2, 3))
    expected, _, _ = lstm_by_loop(lstm, x.numpy(), cont.numpy(), zeros, zeros, static.numpy())
    np.testing.assert_allclose(lstm(x, cont, static).detach().numpy(), expected, rtol=1e-9)
    expected, _ = rnn_by_loop(rnn, x.numpy(), cont.numpy(), zeros, static.numpy())
    np.testing.assert_allclose(rnn(x, cont, static).detach().numpy(), expected, rtol=1e-9)


def test_exposed_states_come_in_and_go_out_without_gradient():
    shapes = (3, 2, 4), (3, 2), (1, 2, 3), (1, 2, 3)
    layer = recurrent("LSTM", *shapes, expose=True, tops=3)
    x, cont, h, c = values(3, 2, 4), continued(3, 2, (0, 1)), values(1, 2, 3, seed=2), values(1, 2, 3, seed=3)
    for _ in range(2):  # what one pass leaves behind must not reach the next
        top, h_last, c_last = layer(x, cont, h.requires_grad_(), c.requires_grad_())
        expected, h_want, c_want = lstm_by_loop(
            layer, x.numpy(), cont.numpy(), h.detach()[0].numpy(), c.detach()[0].numpy()
        )
        np.testing.assert_allclose(top.detach().numpy(), expected, rtol=1e-9)
        np.testing.assert_allclose(h_last.numpy(), h_want[None], rtol=1e-9)
        np.testing.assert_allclose(c_last.numpy(), c_want[None], rtol=1e-9)
    assert not h_last.requires_grad
    assert not c_last.requires_grad
    top.sum().backward()
    assert h.grad is None
    assert c.grad is None


def test_gradients_stop_at_the_pass():
    layer = recurrent("LSTM", (2, 1, 3), (2, 1))
    cont = continued(2, 1)
    first, second = (values(2, 1, 3, seed=s).requires_grad_() for s in (1, 2))
    layer(first, cont)
    layer(second, cont).sum().backward()
    assert first.grad is None
    assert second.grad is not None


def test_backward_may_run_twice_over_one_pass():
    for breaks in ((), ((1, 0),)):
        layer = recurrent("LSTM", (3, 2, 4), (3, 2))
        x = values(3, 2, 4).requires_grad_()
        top = layer(x, continued(3, 2, *breaks)).sum()
        once = torch.autograd.grad(top, [x, *layer.parameters()], retain_graph=True)
        again = torch.autograd.grad(top, [x, *layer.parameters()])
        for a, b in zip(once, again, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


# -- changing shapes ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_states_when_the_number_of_streams_changes(kind):
    layer = recurrent(kind, (2, 3, 4), (2, 3))
    layer(values(2, 3, 4), continued(2, 3))
    kept = recurrent(kind, (2, 3, 4), (2, 3))
    kept(values(2, 3, 4), continued(2, 3))
    fewer = values(2, 3, 4, seed=5)
    assert layer.reshape([(2, 2, 4), (2, 2)])[0] == (2, 2, 3)
    shrunk = layer(fewer[:, :2], continued(2, 2))
    torch.testing.assert_close(shrunk, kept(fewer, continued(2, 3))[:, :2])  # the first streams go on
    more = values(2, 5, 4, seed=6)
    fresh = recurrent(kind, (2, 3, 4), (2, 3))
    torch.testing.assert_close(layer(more, continued(2, 5)), fresh(more, continued(2, 5)))  # new streams: from zero


def test_states_outlive_a_change_of_the_number_of_steps_and_can_be_reset():
    whole, parts = recurrent("LSTM", (5, 2, 4), (5, 2)), recurrent("LSTM", (5, 2, 4), (5, 2))
    x, cont = values(5, 2, 4), continued(5, 2)
    expected = whole(x, cont)
    assert parts.reshape([(3, 2, 4), (3, 2)]) == [(3, 2, 3)]
    first, second = parts(x[:3], cont[:3]), parts(x[3:], cont[3:])
    torch.testing.assert_close(torch.cat([first, second]), expected)
    parts.reset_state()
    torch.testing.assert_close(parts(x, cont), expected)


# -- the unit -------------------------------------------------------------------------------------------------------
def test_lstm_unit_is_one_step_of_the_lstm():
    unit = build('type: "LSTMUnit" bottom: "c" bottom: "g" bottom: "k" top: "d" top: "h"', (1, 3, 2), (1, 3, 8), (1, 3))
    c, gates = values(1, 3, 2), values(1, 3, 8, seed=2)
    cont = torch.tensor([[1.0, 0.0, 0.5]], dtype=torch.float64)
    new_c, new_h = unit(c, gates, cont)
    for n in range(3):
        g = gates[0, n].numpy()
        want = float(cont[0, n]) * sigmoid(g[2:4]) * c[0, n].numpy() + sigmoid(g[:2]) * np.tanh(g[6:])
        np.testing.assert_allclose(new_c[0, n].numpy(), want)
        np.testing.assert_allclose(new_h[0, n].numpy(), sigmoid(g[4:6]) * np.tanh(want))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 3, 2), (1, 3, 8), (1, 3)], "bottom 0 (cell state) must be 1 x streams x size, got 2 x 3 x 2"),
        ([(1, 3, 2), (1, 3, 6), (1, 3)], "bottom 1 (gates) must be 1 x 3 x 8, got 1 x 3 x 6"),
        ([(1, 3, 2), (1, 3, 8), (3,)], "bottom 2 (cont) must be 1 x 3, got 3"),
    ],
)
def test_lstm_unit_refuses(shapes, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        build('type: "LSTMUnit" bottom: "c" bottom: "g" bottom: "k" top: "d" top: "h"', *shapes)


# -- refusals -------------------------------------------------------------------------------------------------------
def test_only_the_kinds_are_layer_types_not_their_base():
    assert "Recurrent" not in layer_types()


@pytest.mark.parametrize(
    ("kind", "shapes", "settings", "message"),
    [
        ("LSTM", [(4, 2, 3)], {}, "takes 2 to 3 bottom blob(s) without expose_hidden, got 1"),
        (
            "RNN",
            [(4, 2, 3), (4, 2)],
            {"expose": True, "tops": 2},
            "takes 3 to 4 bottom blob(s) with expose_hidden, got 2",
        ),
        ("LSTM", [(4, 2, 3), (4, 2)], {"tops": 2}, "gives 1 top blob(s) without expose_hidden, got 2"),
        (
            "LSTM",
            [(4, 2, 3), (4, 2), (1, 2, 3), (1, 2, 3)],
            {"expose": True, "tops": 1},
            "gives 3 top blob(s) with expose_hidden, got 1",
        ),
        ("LSTM", [(4, 2, 3), (4, 2)], {"size": 0}, "recurrent_param.num_output must be at least 1, got 0"),
        ("RNN", [(4, 2), (4, 2)], {}, "bottom 0 needs at least 3 axes, steps x streams x …, got shape 4 x 2"),
        ("RNN", [(0, 2, 3), (0, 2)], {}, "needs at least one step, got bottom 0 of shape 0 x 2 x 3"),
        ("RNN", [(4, 2, 3), (2, 4)], {}, "bottom 1 (cont) must be steps x streams, 4 x 2, got 2 x 4"),
        ("LSTM", [(4, 2, 3), (4, 2), (3, 5)], {}, "bottom 2 (static) must be 2 streams x …, got shape 3 x 5"),
        ("LSTM", [(4, 2, 3), (4, 2), (2,)], {}, "bottom 2 (static) must be 2 streams x …, got shape 2"),
        (
            "RNN",
            [(4, 2, 3), (4, 2), (2, 2), (1, 2, 4)],
            {"expose": True, "tops": 2},
            "bottom 3 is a state and must be 1 x 2 x 3, got 1 x 2 x 4",
        ),
    ],
)
def test_recurrent_refuses(kind, shapes, settings, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        recurrent(kind, *shapes, **settings)


def test_sizes_of_the_inputs_are_fixed():
    layer = recurrent("LSTM", (4, 2, 3), (4, 2), (2, 5))
    with pytest.raises(LayerError, match="the input was built for 3 values per step and stream, got 6"):
        layer.reshape([(4, 2, 2, 3), (4, 2), (2, 5)])
    with pytest.raises(LayerError, match="the static input was built for 5 values per step and stream, got 4"):
        layer.reshape([(4, 2, 3), (4, 2), (2, 4)])
