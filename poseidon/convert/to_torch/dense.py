"""InnerProduct and Embed."""

from __future__ import annotations

from poseidon.convert.to_torch.writing import Writing, arguments


def inner_product(w: Writing) -> str:
    options = w.spec.inner_product_param
    axis = options.axis % w.rank
    weight = w.param_value(0).T.copy() if options.transpose else w.param_value(0)
    values = {"weight": weight} | ({"bias": w.param_value(1)} if options.bias_term else {})
    given = arguments(weight.shape[1], options.num_output, bias=None if options.bias_term else False)
    x = w.x if axis == w.rank - 1 else f"{w.x}.flatten({axis})"
    return f"{w.module(f'nn.Linear({given})', **values)}({x})"


def embed(w: Writing) -> str:
    options = w.spec.embed_param
    table = w.module(f"nn.Embedding({options.input_dim}, {options.num_output})", weight=w.param_value(0))
    y = f"{table}({w.x}.long())"
    return f"{y} + {w.parameter('bias', w.param_value(1))}" if options.bias_term else y
