"""LSTM, RNN and LSTMUnit. ONNX's own LSTM cannot forget in the middle of a sequence, which Caffe's `cont` asks for: the
steps are the body of a Scan. States that the net does not expose begin at zero in every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from poseidon.convert.extents import Dims
from poseidon.convert.to_onnx.builder import Emission, GraphBuilder
from poseidon.net.layer import count_of
from poseidon.net.layers.recurrent import Recurrent

# From the gates' inputs and the states kept: the states after the step, hidden values first.
Step = Callable[[Emission, str, list[str]], list[str]]


def lstm(e: Emission) -> list[str]:
    return _recurrent(e, _lstm_step)


def rnn(e: Emission) -> list[str]:
    hidden, *states = _recurrent(e, _rnn_step)
    last = e.layer.num_params
    weight = e.constant(e.param_value(last - 2).T, f"{e.layer.name}.{last - 2}")
    top = e.op("Tanh", e.op("Add", e.op("MatMul", hidden, weight), e.param(last - 1)))
    return [top, *states]


def lstm_unit(e: Emission) -> list[str]:
    cell, gates, cont = e.inputs
    kept = e.op("Mul", cell, e.unsqueeze(cont, 2))
    new_cell, hidden = _lstm_cell(e, gates, kept, axis=2)
    return [new_cell, hidden]


def _recurrent(e: Emission, step: Step) -> list[str]:
    """Top 0 (of the states, for an RNN the hidden ones), then the states after the last step if they are exposed."""
    layer = e.layer
    assert isinstance(layer, Recurrent)
    num_output, num_states = e.spec.recurrent_param.num_output, layer.num_states
    step_index = layer.num_params - (1 if num_states == 2 else 3)
    projected, cont = _projected(e, layer), e.unsqueeze(e.inputs[1], 2)
    if layer.exposes_states:
        states = [e.squeeze(state, 0) for state in e.inputs[-num_states:]]
    else:
        # One row of zeros per stream, from the first step's cont: finite whatever is in it.
        shape = e.op("Concat", e.extent_of(e.inputs[1], 1), e.integers([num_output]), axis=0)
        states = [e.op("Expand", e.number(0), shape)] * num_states
    weight = e.constant(e.param_value(step_index).T, f"{layer.name}.{step_index}")
    body = _body(e, weight, num_states, step)
    results = e.ops("Scan", *states, projected, cont, num_outputs=num_states + 1, body=body, num_scan_inputs=2)
    tops = [results[-1]]
    if layer.exposes_states:
        tops += [e.unsqueeze(state, 0) for state in results[:num_states]]
    return tops


def _projected(e: Emission, layer: Recurrent) -> str:
    """What the inputs add to the gates, for all steps at once."""
    num_inputs = layer.param_shapes[0][1]
    flat: Dims = (*e.bottoms[0][:2], num_inputs)
    x = e.reshape(e.x, e.bottoms[0], flat)
    y = e.op("Add", e.op("MatMul", x, e.constant(e.param_value(0).T, f"{layer.name}.0")), e.param(1))
    if not layer.has_static:
        return y
    static = e.reshape(e.inputs[2], e.bottoms[2], (e.bottoms[2][0], count_of(e.bottom_shapes[2], 1)))
    return e.op("Add", y, e.op("MatMul", static, e.constant(e.param_value(2).T, f"{layer.name}.2")))


def _body(e: Emission, weight: str, num_states: int, step: Step) -> tuple[GraphBuilder, Any]:
    """One step as a graph: states, gates' inputs and cont in; states and the step's hidden values out."""
    from onnx import TensorProto, helper

    body = GraphBuilder(e.graph.opset, prefix=f"{e.layer.name} step/")
    inner = Emission(body, e.layer)
    inputs = [f"{body.prefix}{name}" for name in (*("h", "c")[:num_states], "inputs", "cont")]
    kept = [inner.op("Mul", state, inputs[-1]) for state in inputs[:num_states]]
    gates = inner.op("Add", inputs[-2], inner.op("MatMul", kept[0], weight))
    states = step(inner, gates, kept)
    hidden = inner.op("Identity", states[0])

    def info(name: str) -> object:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None])

    return body, ([info(name) for name in inputs], [info(name) for name in (*states, hidden)])


def _lstm_step(e: Emission, gates: str, kept: list[str]) -> list[str]:
    cell, hidden = _lstm_cell(e, gates, kept[1], axis=1)
    return [hidden, cell]


def _lstm_cell(e: Emission, gates: str, kept_cell: str, axis: int) -> tuple[str, str]:
    num_output = e.spec.recurrent_param.num_output or e.bottom_shapes[0][2]
    sizes = e.constant(np.full(4, num_output), dtype=np.int64)
    i, f, o, g = e.ops("Split", gates, sizes, num_outputs=4, axis=axis)
    kept_part = e.op("Mul", e.op("Sigmoid", f), kept_cell)
    cell = e.op("Add", kept_part, e.op("Mul", e.op("Sigmoid", i), e.op("Tanh", g)))
    return cell, e.op("Mul", e.op("Sigmoid", o), e.op("Tanh", cell))


def _rnn_step(e: Emission, gates: str, kept: list[str]) -> list[str]:
    return [e.op("Tanh", gates)]
