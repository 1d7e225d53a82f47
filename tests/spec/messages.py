"""Hypothesis strategies for messages of the schema, drawn field by field from the descriptors."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

_SCALARS = {
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.text(max_size=8),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
}
_MAX_REPEATS = 3
_MAX_FIELDS = 4


def _values(field: FieldDescriptor) -> st.SearchStrategy[object]:
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return _SCALARS[field.type]


@st.composite
def _fill(draw: st.DrawFn, message: Message) -> Message:
    descriptor: Descriptor = message.DESCRIPTOR
    chosen = draw(
        st.lists(st.sampled_from(list(descriptor.fields)), max_size=_MAX_FIELDS, unique_by=lambda f: f.number)
    )
    required = [field for field in descriptor.fields if field.is_required]
    for field in {field.name: field for field in [*chosen, *required]}.values():
        repeats = draw(st.integers(1, _MAX_REPEATS)) if field.is_repeated else 1
        for _ in range(repeats):
            if field.message_type is not None:
                child = getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)
                child.SetInParent()
                draw(_fill(child))
            elif field.is_repeated:
                getattr(message, field.name).append(draw(_values(field)))
            else:
                setattr(message, field.name, draw(_values(field)))
    return message


def messages(message_class: type[Message]) -> st.SearchStrategy[Message]:
    """Messages of this class with a few fields set at each level."""
    return st.builds(message_class).flatmap(_fill)
