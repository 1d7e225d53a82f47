"""The check of the few layers that Caffe refuses to run with a top named like the bottom."""

from __future__ import annotations

from poseidon.net.layer import Layer


def forbid_in_place(layer: Layer) -> None:
    shared = set(layer.spec.bottom) & set(layer.spec.top)
    if shared:
        raise layer.error(
            f"cannot run in place, got {sorted(shared)[0]!r} as bottom and top; give the top another name"
        )
