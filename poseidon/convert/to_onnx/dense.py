"""InnerProduct and Embed."""

from __future__ import annotations

from poseidon.convert.extents import Dims
from poseidon.convert.to_onnx.builder import Emission


def inner_product(e: Emission) -> str:
    """One Gemm on rows; a bottom with several axes in front keeps them through a MatMul."""
    options = e.spec.inner_product_param
    axis = options.axis % e.rank
    weight = e.layer.param_shapes[0]
    num_inputs = weight[0] if options.transpose else weight[1]
    if axis > 1:
        flat: Dims = (*e.bottoms[0][:axis], num_inputs)
        matrix = e.param_value(0) if options.transpose else e.param_value(0).T
        y = e.op("MatMul", e.reshape(e.x, e.bottoms[0], flat), e.constant(matrix, f"{e.layer.name}.0"))
        return e.op("Add", y, e.param(1)) if options.bias_term else y
    rows: Dims = (e.bottoms[0][0] if axis else 1, num_inputs)
    if axis == 1 and e.rank > 2:
        x = e.op("Flatten", e.x, axis=1)
    else:
        x = e.reshape(e.x, e.bottoms[0], rows)
    values = [e.param(index) for index in range(e.layer.num_params)]
    y = e.op("Gemm", x, *values, transB=0 if options.transpose else 1)
    return y if axis else e.squeeze(y, 0)


def embed(e: Emission) -> str:
    y = e.op("Gather", e.param(0), e.cast(e.x, "INT64"), axis=0)
    return e.op("Add", y, e.param(1)) if e.spec.embed_param.bias_term else y
