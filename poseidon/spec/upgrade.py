"""Old nets and solvers brought to the current format, as Caffe does on reading.

In this order: layers of 2013 (`upgrade_v0`), layers of 2014 and their data transformations (`upgrade_v1`), `input`
fields into an Input layer, BatchNorm statistics out of the solver's reach; for solvers, the enum `solver_type` into
the string `type`. Upgrading twice changes nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass

from poseidon.errors import SpecError
from poseidon.spec.caffe_pb2 import LayerParameter, NetParameter, ParamSpec, SolverParameter
from poseidon.spec.upgrade_v0 import Place, is_v0, upgrade_v0
from poseidon.spec.upgrade_v1 import is_v1, upgrade_v1

INPUT_ORIGIN = -1
_AXES_OF_INPUT_DIM = 4
_SOLVER_TYPES = {
    SolverParameter.SGD: "SGD",
    SolverParameter.NESTEROV: "Nesterov",
    SolverParameter.ADAGRAD: "AdaGrad",
    SolverParameter.RMSPROP: "RMSProp",
    SolverParameter.ADADELTA: "AdaDelta",
    SolverParameter.ADAM: "Adam",
}
assert set(_SOLVER_TYPES) == set(SolverParameter.SolverType.values())


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What upgrading a net did. True when it did anything."""

    changed: bool
    origins: tuple[int, ...]
    """For each layer now, its index among the layers before; INPUT_ORIGIN for the one made from `input` fields."""
    problems: tuple[str, ...]
    """What the old file said that the current format has no place for, and that was dropped."""

    def __bool__(self) -> bool:
        return self.changed


def needs_upgrade(net: NetParameter) -> bool:
    """Whether any part of the net is in an old format."""
    return is_v1(net) or len(net.input) > 0 or any(_has_learnable_statistics(layer) for layer in net.layer)


def upgrade_net(net: NetParameter, place: Place = "layer {}".format) -> Upgrade:
    """Bring `net` to the current format, in place. `place(i)` opens messages about layer i."""
    changed = needs_upgrade(net)
    origins = list(range(len(net.layers) or len(net.layer)))
    problems: list[str] = []
    if is_v0(net):
        origins, problems = upgrade_v0(net, place)
    if is_v1(net):
        problems += upgrade_v1(net, place)
    if net.input:
        origins = [INPUT_ORIGIN] * _upgrade_inputs(net, place) + origins
    for layer in net.layer:
        if _has_learnable_statistics(layer):
            for spec in layer.param:
                spec.lr_mult = spec.decay_mult = 0
    return Upgrade(changed, tuple(origins), tuple(problems))


def upgrade_solver(solver: SolverParameter, place: str = "solver") -> bool:
    """Bring `solver` to the current format, in place. `place` opens errors. Returns whether that changed anything."""
    if not solver.HasField("solver_type"):
        return False
    if solver.HasField("type"):
        raise SpecError(
            f'{place}: found both type: "{solver.type}" and the older solver_type: '
            f"{SolverParameter.SolverType.Name(solver.solver_type)}, expected one of them; remove solver_type"
        )
    solver.type = _SOLVER_TYPES[solver.solver_type]
    solver.ClearField("solver_type")
    return True


def _upgrade_inputs(net: NetParameter, place: Place) -> int:
    """Turn `input` fields into one Input layer at the front. Returns how many layers that added."""
    count, axes = len(net.input), _AXES_OF_INPUT_DIM
    name = "input_shape" if net.input_shape else "input_dim"
    found, expected = len(getattr(net, name)), count * (1 if net.input_shape else axes)
    # Weight files of old name their inputs without extents; there the fields are just dropped.
    added = found > 0
    if added:
        if found < expected:
            raise SpecError(f"{place(INPUT_ORIGIN)}: found {found} {name}, expected {expected} for {count} inputs")
        shapes = [shape.dim for shape in net.input_shape] or [
            net.input_dim[axes * i : axes * (i + 1)] for i in range(count)
        ]
        layer = LayerParameter(name="input", type="Input", top=net.input)
        for shape in shapes[:count]:
            layer.input_param.shape.add(dim=shape)
        net.layer.insert(0, layer)
    for field in ("input", "input_dim", "input_shape"):
        net.ClearField(field)
    return int(added)


def _has_learnable_statistics(layer: LayerParameter) -> bool:
    """A BatchNorm that declares its three blobs, as it once had to, and would let the solver change them."""

    def is_fixed(spec: ParamSpec) -> bool:
        return all(spec.HasField(name) and getattr(spec, name) == 0 for name in ("lr_mult", "decay_mult"))

    return layer.type == "BatchNorm" and len(layer.param) == 3 and not all(is_fixed(spec) for spec in layer.param)
