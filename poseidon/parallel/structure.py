"""Structure: which parameters of a torch.nn.Module have gradients that can travel as factors or as rows.

    nn.Linear       the weight's gradient is uᵀ v (u: ∂loss/∂output, v: input, batch and positions as rows), the bias's
                    the sum of u's rows: factors, if all modules that hold the weight are plain Linears
    nn.Embedding    the table's gradient is zero but for the rows read: rows, if all holders are plain Embeddings

A subclass with a forward of its own, a parametrization, a compiled or scripted module may do anything with its
parameters: those are dense. So is a table that an output layer shares, since that reads all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from poseidon.errors import UsageError


@dataclass(frozen=True, slots=True)
class Holder:
    """A module that has a parameter, under this attribute."""

    module_name: str
    module: nn.Module
    attribute: str


@dataclass(slots=True)
class Described:
    """A parameter: who holds it, what its gradient can be, and why it cannot where one might expect it.

    factors, rows   its gradient can come so;   sparse   it comes as rows whether we want or not (sparse=True)
    rides_with      for a bias: the weight from whose factors its gradient follows
    """

    name: str
    parameter: nn.Parameter
    holders: list[Holder] = field(default_factory=list)
    factors: bool = False
    rows: bool = False
    sparse: bool = False
    rides_with: str | None = None
    why_dense: str = ""

    def told(self) -> str:
        """What its gradient can be, and who holds it, in words."""
        ways = [way for way, can in (("factors", self.factors), ("rows", self.rows), ("sparse", self.sparse)) if can]
        holders = ", ".join(f"{holder.module_name or '(model)'}.{holder.attribute}" for holder in self.holders)
        return f"{' '.join(ways) or self.why_dense or 'dense'}, of {holders}; rides with {self.rides_with}"


@dataclass(frozen=True, slots=True)
class Structure:
    """`params` by name, in the model's order; `readers` are the modules that hold some, in the model's order; `atoms`
    those whose inside cannot be looked into (compiled, scripted)."""

    params: dict[str, Described]
    readers: dict[str, nn.Module]
    atoms: frozenset[str]

    def named(self) -> dict[nn.Parameter, str]:
        return {found.parameter: name for name, found in self.params.items()}

    def told(self) -> str:
        """Everything that plans depend on beside shapes, a line each: workers have to agree on it."""
        params = [f"{name}: {found.told()}" for name, found in self.params.items()]
        return "\n".join([*params, *(f"{name or '(model)'}: closed" for name in sorted(self.atoms))])


def find_structure(model: nn.Module) -> Structure:
    """What there is to know before the model has run."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if _has_elements(name, parameter)]
    params = {name: Described(name, parameter) for name, parameter in named}
    by_value = {found.parameter: found for found in params.values()}
    readers: dict[str, nn.Module] = {}
    atoms = set()
    for name, module, is_atom in _visible(model):
        own = list(_held(module, recurse=is_atom))
        for attribute, parameter in own:
            if parameter in by_value:
                by_value[parameter].holders.append(Holder(name, module, attribute))
        if own or name == "":
            readers[name] = module
        if is_atom:
            atoms.add(name)
    for found in params.values():
        _check(found)
        _describe(found, atoms)
    _let_biases_ride(params)
    return Structure(params, readers, frozenset(atoms))


def _held(module: nn.Module, *, recurse: bool) -> Iterator[tuple[str, nn.Parameter]]:
    """Its own parameters, and those in lists and dicts of parameters: these never run themselves."""
    yield from module.named_parameters(recurse=recurse, remove_duplicate=False)
    for name, child in () if recurse else module.named_children():
        if _is_shelf(child):
            yield from ((f"{name}.{own}", parameter) for own, parameter in _held(child, recurse=False))


def _is_shelf(module: nn.Module) -> bool:
    return isinstance(module, nn.ParameterList | nn.ParameterDict)


def _visible(model: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """Modules by name, down to the first whose inside is closed; and whether it is one of those."""
    closed: list[str] = []
    for name, module in model.named_modules():
        if _is_shelf(module) and name:
            continue
        if any(name.startswith(f"{outer}." if outer else "") for outer in closed):
            continue
        is_atom = _is_closed(module)
        if is_atom:
            closed.append(name)
        yield name, module, is_atom


def _is_closed(module: nn.Module) -> bool:
    is_compiled = getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")
    return is_compiled or isinstance(module, torch.jit.ScriptModule)


def _has_elements(name: str, value: nn.Parameter) -> bool:
    if isinstance(value, nn.parameter.UninitializedParameter):
        raise UsageError(
            f"parameter {name!r} has no shape yet: run a dry forward pass before wrapping the model in Parallel"
        )
    return value.numel() > 0


def _check(found: Described) -> None:
    value = found.parameter
    if value.is_complex():
        raise UsageError(
            f"parameter {found.name!r} is complex, which cannot travel: keep it as a real one, with torch.view_as_real"
        )
    if value.requires_grad and not (value.is_contiguous() or _fills_its_memory(value)):
        raise UsageError(
            f"parameter {found.name!r} of shape {tuple(value.shape)} has strides {value.stride()}: gradients travel "
            "for parameters that lie in one piece of memory; replace it by a contiguous copy before wrapping"
        )


def _fills_its_memory(value: nn.Parameter) -> bool:
    """True if the elements are one run of memory in some order of the axes (channels_last, a transpose)."""
    expected = 1
    for stride, extent in sorted(zip(value.stride(), value.shape, strict=True)):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return True


def _describe(found: Described, atoms: set[str]) -> None:
    kinds = {_kind(holder, atoms) for holder in found.holders}
    looks = {type(holder.module) for holder in found.holders}
    if kinds == {"weight of a Linear"} and found.parameter.is_contiguous():
        found.factors = True
    elif kinds == {"table"} and found.parameter.is_contiguous():
        found.rows = True
    elif {"table", "weight of a Linear"} <= kinds:
        found.why_dense = f"tied: {_names(found)} share it, and an output layer's gradient has all rows"
    elif len(found.holders) > 1 and "other" in kinds and len(kinds) > 1:
        found.why_dense = f"shared by {_names(found)}, not all of which give factors or rows"
    elif any(holder.module_name in atoms for holder in found.holders):
        found.why_dense = "inside a compiled or scripted module"
    elif looks & {nn.Linear, nn.Embedding}:
        found.why_dense = "its layer has an option, a hook or a forward of its own that needs the dense gradient"
    found.sparse = any(getattr(holder.module, "sparse", False) is True for holder in found.holders) and (
        found.rows or "sparse bag" in kinds
    )
    if kinds == {"sparse bag"}:
        found.rows = True


def _kind(holder: Holder, atoms: set[str]) -> str:
    module = holder.module
    if holder.module_name in atoms:
        return "closed"
    if type(module).forward is nn.Linear.forward and _is_plain(module) and holder.attribute in ("weight", "bias"):
        return f"{holder.attribute} of a Linear"
    if type(module).forward is nn.Embedding.forward and _is_plain(module) and holder.attribute == "weight":
        assert isinstance(module, nn.Embedding)
        return "table" if module.max_norm is None and not module.scale_grad_by_freq else "other"
    if isinstance(module, nn.EmbeddingBag) and module.sparse and holder.attribute == "weight":
        return "sparse bag"
    return "other"


def _is_plain(module: nn.Module) -> bool:
    """True if its class's forward is what runs; a copy of a wrapped model has that as an attribute (forwards.py)."""
    own = vars(module).get("forward")
    is_own = own is None or (getattr(own, "__self__", None) is module and own.__func__ is type(module).forward)
    return is_own and "weight" in module._parameters


def _names(found: Described) -> str:
    return " and ".join(repr(holder.module_name) for holder in found.holders[:3])


def _let_biases_ride(params: dict[str, Described]) -> None:
    """A bias rides with a weight that exactly the same Linears hold, if both learn."""
    weights = {_modules(found, "weight"): name for name, found in params.items() if found.factors}
    for found in params.values():
        weight = weights.get(_modules(found, "bias"))
        if weight is None or any(holder.attribute != "bias" for holder in found.holders):
            continue
        value, onto = found.parameter, params[weight].parameter
        if value.requires_grad and onto.requires_grad and value.dtype == onto.dtype:
            found.rides_with = weight


def _modules(found: Described, attribute: str) -> tuple[int, ...]:
    return tuple(sorted(id(holder.module) for holder in found.holders if holder.attribute == attribute))
