"""Messages as prototxt, with short messages on one line."""

from __future__ import annotations

from google.protobuf.message import Message

from poseidon.spec import caffe_pb2, format_message

ONE_LINE = 110  # a message whose text fits into this many characters stays on one line


def compact_text(message: Message) -> str:
    """The text of a message; messages inside it that are short, other than layers, take one line."""
    blocks: list[list[str]] = [[]]  # the lines of the blocks that are open, innermost last
    for line in format_message(message).splitlines():
        if line.endswith("{"):
            blocks.append([line])
        elif line.strip() == "}":
            block = blocks.pop()
            blocks[-1] += _folded(block, line)
        else:
            blocks[-1].append(line)
    return "".join(f"{line}\n" for line in blocks[0])


def _folded(block: list[str], end: str) -> list[str]:
    head, *inside = block
    joined = " ".join([head, *(line.strip() for line in inside), "}"])
    is_layer = head.strip() == "layer {"
    return [joined] if not is_layer and len(joined) <= ONE_LINE else [*block, end]


def solver_fields(fields: dict[str, object]) -> str:
    """The text of a solver with these fields, in the order of the dict; a repeated one may be given as one value."""
    solver = caffe_pb2.SolverParameter
    known = solver.DESCRIPTOR.fields_by_name
    lists = {name: isinstance(value, list) or not known[name].is_repeated for name, value in fields.items()}
    return "".join(compact_text(solver(**{name: value if lists[name] else [value]})) for name, value in fields.items())
