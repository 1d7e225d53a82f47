"""Layers that pick: ArgMax, BatchReindex, Filter."""

from __future__ import annotations

from poseidon.convert.extents import Dim, Dims
from poseidon.convert.to_onnx.builder import Emission
from poseidon.net.layer import count_of

_BEFORE_THE_FIRST = -(2**62)


def argmax(e: Emission) -> str:
    options = e.spec.argmax_param
    if options.HasField("axis"):
        axis = options.axis % e.rank
        values, index = _largest(e, e.x, e.bottoms[0][axis], axis)
        return values if options.out_max_val else index
    num_entries = count_of(e.shape, 1)
    rows: Dims = (e.bottoms[0][0], num_entries)
    values, index = _largest(e, e.reshape(e.x, e.bottoms[0], rows), num_entries, 1)
    parts = [e.unsqueeze(part, 1) for part in ([index, values] if options.out_max_val else [index])]
    stacked = e.op("Concat", *parts, axis=1) if len(parts) == 2 else parts[0]
    return e.reshape(stacked, (rows[0], len(parts), options.top_k), e.tops[0])


def _largest(e: Emission, x: str, size: Dim, axis: int) -> tuple[str, str]:
    """Values and positions, largest first, of equal ones the later first: TopK prefers the earlier, so from behind."""
    behind = e.slice(x, axis, -1, _BEFORE_THE_FIRST, -1)
    count = e.integers([e.spec.argmax_param.top_k])
    values, index = e.ops("TopK", behind, count, num_outputs=2, axis=axis, largest=1, sorted=1)
    last = e.op("Sub", e.extent_of(x, axis), e.integers([1])) if isinstance(size, str) else e.integers(size - 1)
    return values, e.cast(e.op("Sub", last, index), "FLOAT")


def batch_reindex(e: Emission) -> str:
    return e.op("Gather", e.x, e.cast(e.inputs[1], "INT64"), axis=0)


def filter_(e: Emission) -> list[str]:
    *filtered, selector = e.inputs
    flat = e.op("Reshape", selector, e.integers([-1]))
    chosen = e.op("Not", e.op("Equal", flat, e.number(0)))
    return [e.op("Compress", value, chosen, axis=0) for value in filtered]
