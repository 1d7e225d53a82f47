"""Graphviz: a picture of a net as text that `dot` understands, and as an image that `dot` makes of it.

    text = dot_text(picture, rankdir="LR")
    image = render(text, "svg")          svg, png, pdf, … whatever this `dot` can; dot, gv and raw are the text itself

Where the drawing runs across, words stand under each other; where it runs down, beside each other, as in Caffe.
"""

from __future__ import annotations

import shutil
import subprocess

from poseidon.errors import UsageError
from poseidon.tools.picture import Kind, Picture, PictureNode

RANKDIRS = ("LR", "RL", "TB", "BT")
TEXT_FORMATS = ("dot", "gv", "raw")

# Characters that structure the label of a record.
_RECORD_CHARACTERS = str.maketrans({character: f"\\{character}" for character in "{}|<>"})


def dot_text(picture: Picture, rankdir: str = "LR") -> str:
    """The picture in Graphviz's language."""
    if rankdir not in RANKDIRS:
        raise UsageError(f"the direction of a drawing is one of {', '.join(RANKDIRS)}, got {rankdir!r}")
    separator = r"\n" if rankdir in ("LR", "RL") else " "
    lines = [f"digraph {_identifier(picture.name)} {{", f"  rankdir={rankdir};"]
    lines += [f"  {_identifier(node.key)} [{_attributes(node, separator)}];" for node in picture.nodes]
    for edge in picture.edges:
        label = f" [label={_identifier(edge.label)}]" if edge.label else ""
        lines.append(f"  {_identifier(edge.start)} -> {_identifier(edge.end)}{label};")
    return "\n".join([*lines, "}"]) + "\n"


def render(text: str, image_format: str) -> bytes:
    """The image that `dot` draws."""
    if image_format in TEXT_FORMATS:
        return text.encode()
    program = shutil.which("dot")
    if program is None:
        raise UsageError(
            f"drawing as {image_format!r} needs Graphviz, whose program `dot` is not on the PATH: install it (apt "
            "install graphviz), or write a .dot file, which needs nothing, and draw that elsewhere"
        )
    drawn = subprocess.run([program, f"-T{image_format}"], input=text.encode(), capture_output=True, check=False)
    if drawn.returncode:
        problem = drawn.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise UsageError(f"Graphviz cannot draw as {image_format!r}: {problem}; svg, png and pdf usually work")
    return drawn.stdout


def _attributes(node: PictureNode, separator: str) -> str:
    if not node.is_layer:
        text = _quoted(separator.join(_escaped(word) for word in node.words))
        filled = f', shape=octagon, style=filled, fillcolor="{node.kind.value}"' if node.kind is Kind.BLOB else ""
        return f"label={text}{filled}"
    words = [_escaped(word).translate(_RECORD_CHARACTERS) for word in node.words]
    return f'label={_quoted(separator.join(words))}, shape=record, style=filled, fillcolor="{node.kind.value}"'


def _escaped(word: str) -> str:
    """A word in a label, where a backslash has a meaning."""
    return word.replace("\\", "\\\\").replace("\n", " ")


def _identifier(text: str) -> str:
    return _quoted(_escaped(text))


def _quoted(text: str) -> str:
    return '"' + text.replace('"', r"\"") + '"'
