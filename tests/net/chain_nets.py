"""Small nets of InnerProducts in a row, and their values, for tests of weight files."""

from __future__ import annotations

import numpy as np

from poseidon.net.net import Net


def shape(*extents: int) -> str:
    return f"shape {{ {' '.join(f'dim: {extent}' for extent in extents)} }}"


def chain(*layers: tuple[str, int], inputs: int = 3) -> str:
    """A net of InnerProducts in a row; (name, num_output) each."""
    text = f'name: "chain" layer {{ name: "in" type: "Input" top: "in" input_param {{ {shape(2, inputs)} }} }}\n'
    bottom = "in"
    for name, num_output in layers:
        text += (
            f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" inner_product_param '
            f'{{ num_output: {num_output} weight_filler {{ type: "xavier" }} bias_filler {{ type: "uniform" }} }} }}\n'
        )
        bottom = name
    return text


def make(text: str, seed: int = 1, **options) -> Net:
    return Net.from_text(text, seed=seed, **options)


def values(net: Net) -> dict[str, list[np.ndarray]]:
    return {name: [p.detach().double().numpy().copy() for p in params] for name, params in net.params.items()}


def same(a: dict[str, list[np.ndarray]], b: dict[str, list[np.ndarray]]) -> bool:
    return a.keys() == b.keys() and all(
        len(a[name]) == len(b[name]) and all(np.array_equal(x, y) for x, y in zip(a[name], b[name], strict=True))
        for name in a
    )
