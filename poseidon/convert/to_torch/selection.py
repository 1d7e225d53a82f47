"""Layers that pick: ArgMax, BatchReindex, Filter."""

from __future__ import annotations

from poseidon.convert.to_torch import parts
from poseidon.convert.to_torch.writing import Writing


def argmax(w: Writing) -> str:
    options = w.spec.argmax_param
    if options.HasField("axis"):
        axis = options.axis % w.rank
        index = f"{w.part(parts.largest)}({w.x}, {options.top_k}, {axis})"
        return f"{w.x}.gather({axis}, {index})" if options.out_max_val else f"{index}.float()"
    both = f"{w.part(parts.largest_per_sample)}({w.x}, {options.top_k})"
    both = both if options.out_max_val else f"{both}[:, :1]"
    return w.reshaped(both, (w.bottoms[0][0], 2 if options.out_max_val else 1, options.top_k), w.tops[0])


def batch_reindex(w: Writing) -> str:
    return f"{w.x}[{w.inputs[1]}.long()]"


def filter_(w: Writing) -> list[str]:
    *filtered, selector = w.inputs
    return [f"{w.part(parts.selected)}({value}, {selector})" for value in filtered]
