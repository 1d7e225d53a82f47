"""One net reading another's parameters: what a solver's test nets do with the train net's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poseidon.errors import NetError
from poseidon.net.layer import text_of

if TYPE_CHECKING:
    from poseidon.net.net import Net


def share_params(target: Net, source: Net) -> None:
    """Makes the layers of `target` use the parameters of the layers of the same name in `source`, not copies.

    Layers that only one of them has stay as they are. Number and shapes of the blobs must agree.
    """
    layers = target.layers
    for name, layer in source.layers.items():
        mine = layers.get(name)
        if mine is None:
            continue
        if mine.param_shapes != layer.param_shapes:
            raise NetError(
                f"{mine.context.where}: layer {name!r} cannot share its parameters between two nets: "
                f"{_shapes(mine.param_shapes)} here, {_shapes(layer.param_shapes)} in {layer.context.where}; "
                "give one of the layers another name"
            )
        for index in range(layer.num_params):
            mine.share_param(index, layer.param_owner(index))
    for entry in target.graph.params.entries:
        entry.value = layers[entry.layer].param_owner(entry.index)


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return f"{len(shapes)} blob(s)" + (f" ({', '.join(map(text_of, shapes))})" if shapes else "")
