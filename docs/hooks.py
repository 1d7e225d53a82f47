"""What the site does to the pages.

Links to files outside of docs/ (examples, CONTRIBUTING.md) are right in the repository, but not on the site: there they
become the text with the file's name, after a look that the file exists. Pages that mkdocs.yml does not name yet come at
the end of the menu, so that none is ever out of reach.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)\)")
_log = logging.getLogger("mkdocs.hooks.outside")


def on_config(config: Any) -> Any:
    named = set(_named(config["nav"]))
    others = sorted(path.name for path in Path(config["docs_dir"]).glob("*.md") if path.name not in named)
    if others:
        config["nav"].append({"More": others})
    return config


def _named(nav: Any) -> list[str]:
    """The pages that a menu names, however deep."""
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in _named(entry)]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    def told(match: re.Match[str]) -> str:
        text, path = match.groups()
        if not (_ROOT / path).exists():
            _log.warning("%s links to %s, which is not there", page.file.src_path, path)
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"

    return _OUTSIDE.sub(told, markdown)
