"""The table of a net's parameters: who owns which blob, who shares it, and how fast it learns.

Caffe's rules: blobs with the same `param { name }` are one parameter, owned by the layer that comes first. STRICT
sharing (the default) wants equal shapes, PERMISSIVE only equal counts. A learning rate or decay multiplier given by
several sharers must be the same number. A blob with lr_mult 0 gets no gradient unless the net forces one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from poseidon.errors import LayerError
from poseidon.net.layer import Layer, count_of, text_of
from poseidon.spec import caffe_pb2


@dataclass(slots=True)
class ParamEntry:
    """One parameter of a net, at its owner, with the places that read it."""

    layer: str
    index: int
    name: str
    value: nn.Parameter
    lr_mult: float | None
    decay_mult: float | None
    sharers: list[tuple[str, int]]

    @property
    def rate(self) -> float:
        """Factor on the learning rate."""
        return 1.0 if self.lr_mult is None else self.lr_mult

    @property
    def decay(self) -> float:
        """Factor on the weight decay."""
        return 1.0 if self.decay_mult is None else self.decay_mult


class ParamTable:
    """All parameters in Caffe's order: by layer, then by index; each once, at its owner."""

    def __init__(self, layers: Sequence[Layer], *, force_backward: bool) -> None:
        self.entries: list[ParamEntry] = []
        self._by_name: dict[str, ParamEntry] = {}
        self._owned: set[tuple[int, int]] = set()
        for position, layer in enumerate(layers):
            if len(layer.spec.param) > layer.num_params:
                raise layer.error(
                    f"has {layer.num_params} parameter blob(s), got {len(layer.spec.param)} `param` entries"
                )
            for index in range(layer.num_params):
                self._append(layer, position, index)
        self._freeze({layer.name for layer in layers if layer.context.frozen})
        for entry in self.entries:
            if entry.value.requires_grad:
                entry.value.requires_grad_(force_backward or entry.rate != 0)

    def _freeze(self, frozen: set[str]) -> None:
        """What a frozen layer reads does not learn, whoever owns it."""
        for entry in self.entries:
            if entry.layer in frozen or any(layer in frozen for layer, _ in entry.sharers):
                entry.lr_mult = 0.0

    def owns(self, layer_position: int, index: int) -> bool:
        """True if the layer at this position of the net owns its blob, false if it reads another layer's."""
        return (layer_position, index) in self._owned

    def _append(self, layer: Layer, position: int, index: int) -> None:
        spec = layer.spec.param[index] if index < len(layer.spec.param) else caffe_pb2.ParamSpec()
        owner = self._by_name.get(spec.name) if spec.name else None
        if owner is None:
            self._own(layer, position, index, spec)
            return
        self._check_shapes(layer, index, spec, owner)
        layer.share_param(index, owner.value)
        owner.sharers.append((layer.name, index))
        for field in ("lr_mult", "decay_mult"):
            if not spec.HasField(field):
                continue
            given = getattr(owner, field)
            if given is not None and given != getattr(spec, field):
                raise self._mismatch(layer, owner, f"{field} {getattr(spec, field):g}", f"{given:g}")
            setattr(owner, field, getattr(spec, field))

    def _own(self, layer: Layer, position: int, index: int, spec: caffe_pb2.ParamSpec) -> None:
        value = layer.param_owner(index)
        lr_mult = spec.lr_mult if spec.HasField("lr_mult") else None
        entry = ParamEntry(
            layer=layer.name,
            index=index,
            name=spec.name,
            value=value,
            lr_mult=lr_mult if value.requires_grad else 0.0,
            decay_mult=spec.decay_mult if spec.HasField("decay_mult") else None,
            sharers=[],
        )
        self.entries.append(entry)
        self._owned.add((position, index))
        if spec.name:
            self._by_name[spec.name] = entry

    def _check_shapes(self, layer: Layer, index: int, spec: caffe_pb2.ParamSpec, owner: ParamEntry) -> None:
        shape, owned = layer.param_shapes[index], tuple(owner.value.shape)
        if spec.share_mode == caffe_pb2.ParamSpec.PERMISSIVE:
            if count_of(shape) != count_of(owned):
                raise self._mismatch(layer, owner, f"{count_of(shape)} values ({text_of(shape)})", f"{count_of(owned)}")
        elif shape != owned:
            raise self._mismatch(layer, owner, f"shape {text_of(shape)}", text_of(owned))

    @staticmethod
    def _mismatch(layer: Layer, owner: ParamEntry, got: str, expected: str) -> LayerError:
        return layer.error(
            f"shares parameter {owner.name!r} with layer {owner.layer!r}, which has {expected}; got {got}"
        )
