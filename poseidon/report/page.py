"""The page: one HTML file with everything inside, which asks the network for nothing and works from file://.

Style and scripts are files of their own in `page/`, put in here. Text from the run is escaped (`escaping.py`), and the
page's content security policy lets only this one script run, by its hash: markup that got in anyway could do nothing.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from poseidon import __version__
from poseidon.report.contents import Contents
from poseidon.report.curves import Chart
from poseidon.report.escaping import data, html
from poseidon.report.sections import SECTIONS
from poseidon.report.tiles import tiles_of
from poseidon.report.words import seconds_text, when

_SCRIPTS = ("figures.js", "theme.js", "tables.js", "charts.js", "timeline.js", "net.js", "start.js")


def page_of(contents: Contents) -> str:
    """The report as HTML."""
    made = [(key, title, section(contents)) for key, title, section in SECTIONS]
    made = [(key, title, text) for key, title, text in made if text]
    links = "".join(f'<li><a href="#{key}">{html(title)}</a></li>' for key, title, _ in made)
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="Poseidon {html(__version__)}">
<title>{html(contents.title)} · Poseidon report</title>
<link rel="icon" href="data:,">
<style>
{_part("style.css")}</style>
</head>
<body>
<header>
<div class="brand"><span>Poseidon report</span><button type="button" id="theme" class="theme" hidden>Dark</button></div>
{_heading(contents)}
</header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main>
{_tiles(contents)}
{"".join(text for _, _, text in made)}
</main>
<footer>Made by Poseidon {html(__version__)}. This page holds all of its data and asks the network for nothing.</footer>
<span id="probe" hidden></span>
<script type="application/json" id="data">{data(_data(contents))}</script>
<script>{script}</script>
</body>
</html>
"""


def _heading(contents: Contents) -> str:
    facts = contents.run.facts
    if facts.kind == "simulation":
        css, chip = "going", "simulation"
    elif facts.outcome is None:
        css, chip = "going", "running, or ended without a word"
    else:
        css, chip = ("wrong" if facts.outcome.startswith("failed") else ""), facts.outcome
    hosts = len(contents.nodes)
    number = contents.run.num_workers
    where = f"{number} worker{'s' if number > 1 else ''}" + (
        f" on {hosts} host{'s' if hosts > 1 else ''}" if hosts else ""
    )
    words = [where, when(facts.started)]
    if facts.finished is not None:
        words.append(f"took {seconds_text(facts.finished - facts.started)}")
    byline = " · ".join(word for word in words if word)
    return (
        f'<div class="titles"><h1>{html(contents.title)}</h1><span class="chip {css}">{html(chip)}</span></div>'
        f'<p class="byline">{html(byline)}</p>'
    )


def _tiles(contents: Contents) -> str:
    made = "".join(
        f'<div class="tile"><dt>{html(tile.name)}</dt><dd>{html(tile.value)}'
        f"{f' <span class=unit>{html(tile.unit)}</span>' if tile.unit else ''}"
        f"{f'<small>{html(tile.note)}</small>' if tile.note else ''}</dd></div>"
        for tile in tiles_of(contents)
    )
    return f'<dl class="tiles">{made}</dl>' if made else ""


def _data(contents: Contents) -> dict[str, Any]:
    return {
        "charts": {"curves": _charts(contents.curves), "speeds": _charts(contents.speeds)},
        "timeline": contents.timeline,
    }


def _charts(charts: tuple[Chart, ...]) -> list[dict[str, Any]]:
    return [
        {
            "key": chart.key,
            "title": chart.title,
            "unit": chart.unit,
            "from_zero": chart.from_zero,
            "logs": chart.logs,
            "series": [
                {
                    "name": series.name,
                    "dashed": series.dashed,
                    "points": [[point.iteration, round(point.seconds, 3), point.value] for point in series.points],
                }
                for series in chart.series
            ],
        }
        for chart in charts
    ]


@cache
def _script() -> str:
    return "(() => {\n'use strict';\n" + "\n".join(_part(name) for name in _SCRIPTS) + "})();"


@cache
def _part(name: str) -> str:
    return (files("poseidon.report") / "page" / name).read_text(encoding="utf-8")
