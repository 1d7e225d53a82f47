"""The net as a drawing (SVG): a card for every layer with what is folded into it, shapes, parameters and schemes.

Geometry comes from `layout.py`, what is said from `poseidon/tools` (`flow.py`, `net_notes.py`), colours from the page's
style sheet by class. A name that is too long for its card is cut; the card's title has all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from poseidon.report.escaping import html
from poseidon.report.layout import Place, Size, place_cards
from poseidon.spec import NetSource
from poseidon.tools.flow import Card, flow_of
from poseidon.tools.net_notes import NetFacts, count_text, extents_text
from poseidon.tools.picture import layer_words

CARD_WIDTH, LINE_HEIGHT, PADDING, MARGIN = 208.0, 17.0, 9.0, 12.0
_MOST_LETTERS = 30


def net_drawing(source: NetSource, facts: NetFacts) -> str:
    """The SVG of a net in one phase; empty for a net without layers."""
    flow = flow_of(source)
    texts = [_lines(card, facts) for card in flow.cards]
    sizes = [Size(CARD_WIDTH, len(lines) * LINE_HEIGHT + 2 * PADDING) for lines in texts]
    placed = place_cards(sizes, [(edge.start, edge.end) for edge in flow.edges])
    width, height = placed.width + 2 * MARGIN, placed.height + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="net" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{-MARGIN:g} {-MARGIN:g} {width:.0f} {height:.0f}" role="img" '
        f'aria-label="The net: {len(flow.cards)} layers from data to loss">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    parts += [
        _edge(route, edge.blob, facts) for route, edge in zip(placed.routes, flow.edges, strict=True)
    ]  # cards hide what crosses them
    parts += [
        _card(card, lines, place, size, facts)
        for card, lines, place, size in zip(flow.cards, texts, placed.cards, sizes, strict=True)
    ]
    return "".join([*parts, "</svg>"])


def _lines(card: Card, facts: NetFacts) -> list[tuple[str, str]]:
    """Pairs of a class and a text, line by line."""
    first, *folded = card.layers
    name, kind, *options = layer_words(first)
    lines = [("name", name), ("kind", " ".join([kind.strip("()"), *_short(options)]))]
    for layer in folded:
        lines.append(("kind", f"+ {layer.name} ({layer.type})"))
    shapes = dict.fromkeys(extents_text(facts.blobs[top]) for top in card.tops if top in facts.blobs)
    if shapes:
        lines.append(("shape", "→ " + ", ".join(shapes).replace(" x ", "×")))
    known = [facts.layers[layer.name] for layer in card.layers if layer.name in facts.layers]
    num_params = sum(one.num_params for one in known)
    if num_params:
        schemes = list(dict.fromkeys(scheme for one in known for scheme in one.schemes))
        lines.append(("params", f"{count_text(num_params)} parameters"))
        lines += [("scheme", ", ".join(schemes))] if schemes else []
    return lines


def _short(options: Sequence[str]) -> list[str]:
    """`kernel size: 5`, `stride: 2`, `pad: 0` as `5`, `/2`: what stands on a card is read at a glance."""
    values = dict(option.split(": ", 1) for option in options if ": " in option)
    words = [option for option in options if ": " not in option]
    words += [values["kernel size"]] if "kernel size" in values else []
    words += [f"/{values['stride']}"] if values.get("stride", "1") != "1" else []
    words += [f"pad {values['pad']}"] if values.get("pad", "0") != "0" else []
    return words


def _card(card: Card, lines: Sequence[tuple[str, str]], place: Place, size: Size, facts: NetFacts) -> str:
    known = [facts.layers[layer.name] for layer in card.layers if layer.name in facts.layers]
    travels = any(scheme != "fixed" for one in known for scheme in one.schemes)
    kind = "travels" if travels else "learns" if any(one.params for one in known) else "plain"
    x, y = place.x - size.width / 2, place.y
    text = "".join(
        f'<text class="{css}" x="{x + PADDING:.1f}" y="{y + PADDING + (row + 0.75) * LINE_HEIGHT:.1f}">'
        f"{html(_cut(line))}</text>"
        for row, (css, line) in enumerate(lines)
    )
    title = html("\n".join(line for _, line in lines))
    return (
        f'<g class="card {kind}"><title>{title}</title><rect x="{x:.1f}" y="{y:.1f}" width="{size.width:g}" '
        f'height="{size.height:g}" rx="7"/>{text}</g>'
    )


def _edge(route: Sequence[Place], blob: str, facts: NetFacts) -> str:
    start, *rest = route
    path = [f"M{start.x:.1f} {start.y:.1f}"]
    at = start
    for point in rest:
        middle = (at.y + point.y) / 2
        path.append(
            f"V{point.y:.1f}"
            if at.x == point.x
            else f"C{at.x:.1f} {middle:.1f} {point.x:.1f} {middle:.1f} {point.x:.1f} {point.y:.1f}"
        )
        at = point
    shape = f": {extents_text(facts.blobs[blob])}" if blob in facts.blobs else ""
    return f'<path class="edge" d="{"".join(path)}" marker-end="url(#arrow)"><title>{html(blob + shape)}</title></path>'


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"
