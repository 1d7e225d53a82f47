"""Tables of the report: cells with what they sort by and, where it helps, a picture in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poseidon.report.escaping import html


@dataclass(frozen=True, slots=True)
class Column:
    """`is_number`: right-aligned, sorted by number, from the greatest. `css`: a class of its cells."""

    title: str
    is_number: bool = False
    css: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """Text, the number it sorts by (None: the text itself), and markup that stands in its place, if any."""

    text: str
    key: float | None = None
    markup: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """`sum_row`: what the rows add up to; it stays the last however they are sorted."""

    label: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    sum_row: Sequence[Cell] = ()

    def markup(self) -> str:
        headings = "".join(
            f'<th scope="col" aria-sort="none"{_css(column)}><button type="button">{html(column.title)}</button></th>'
            for column in self.columns
        )
        body = "".join(self._row(row, "") for row in self.rows)
        body += self._row(self.sum_row, ' class="sum"') if self.sum_row else ""
        caption = f"<caption>{html(self.caption)}</caption>" if self.caption else ""
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{html(self.label)}"><table class="sortable">'
            f"{caption}<thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _row(self, cells: Sequence[Cell], attributes: str) -> str:
        made = []
        for place, (cell, column) in enumerate(zip(cells, self.columns, strict=True)):
            tag = "th" if place == 0 else "td"
            scope = ' scope="row"' if place == 0 else ""
            key = "" if cell.key is None else f' data-key="{cell.key:.12g}"'
            made.append(f"<{tag}{scope}{key}{_css(column)}>{cell.markup or html(cell.text)}</{tag}>")
        return f"<tr{attributes}>{''.join(made)}</tr>"


def _css(column: Column) -> str:
    css = "num" if column.is_number else column.css
    return f' class="{css}"' if css else ""


def number(value: float | None, text: str) -> Cell:
    """A figure; one that is not known sorts below all others."""
    return Cell("–", -1.0) if value is None else Cell(text, value)


def stack(parts: Sequence[tuple[str, float]], label: str) -> str:
    """One bar of several parts: pairs of a class and a share from 0 to 1."""
    pieces = "".join(f'<i class="{css}" style="width:{100 * share:.2f}%"></i>' for css, share in parts)
    return f'<div class="stack" role="img" aria-label="{html(label)}">{pieces}</div>'


def bars(parts: Sequence[tuple[str, float]], label: str) -> str:
    """Bars below each other: pairs of a class and a share from 0 to 1."""
    pieces = "".join(f'<i class="{css}" style="width:{100 * share:.2f}%"></i>' for css, share in parts)
    return f'<div class="bars" role="img" aria-label="{html(label)}">{pieces}</div>'


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """What colours mean: pairs of a class and a text."""
    items = "".join(f'<li><span class="swatch {css}"></span>{html(text)}</li>' for css, text in entries)
    return f'<ul class="legend">{items}</ul>'
