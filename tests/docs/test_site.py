"""The site builds without a warning: every page is in the menu, links and anchors lead somewhere, names of the API are
found; and it asks nobody else for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.hooks import on_config, on_page_markdown

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_are_there_and_load_nothing_from_elsewhere(site):
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert pages <= {page.stem for page in site.glob("*.html")}
    for page in site.glob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="([^"]+)"', page.read_text())
        loaded += re.findall(r'<link rel="(?:stylesheet|preconnect|preload)"[^>]* href="([^"]+)"', page.read_text())
        assert [url for url in loaded if re.match(r"(https?:)?//", url)] == [], page.name


def test_a_page_is_in_the_menu_once():
    """`mkdocs build` does not mind a page that is there twice."""
    listed = re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2])
    assert len(listed) > 20
    assert sorted(listed) == sorted(set(listed))


def test_the_api_is_what_the_docstrings_say(site):
    text = (site / "api.html").read_text()
    for name in ("Net", "Solver", "Parallel", "overlap", "make_plan", "CommPlan", "read", "PeerLost"):
        assert re.search(rf'id="poseidon\.[\w.]*{name}"', text), name


class _Page:
    class file:  # noqa: N801 (as mkdocs calls it)
        src_path = "x.md"


def test_links_out_of_the_docs_become_names(caplog):
    told = on_page_markdown("see [the file](../LICENSE), [`README.md`](../README.md), [here](cluster.md)", _Page())
    assert told == "see the file (`LICENSE`), `README.md`, [here](cluster.md)"
    assert not caplog.records
    on_page_markdown("[gone](../gone.py)", _Page())
    assert "x.md links to gone.py, which is not there" in caplog.text


def test_pages_that_nobody_named_come_last(tmp_path):
    for name in ("a.md", "b.md", "new.md", "newer.md"):
        (tmp_path / name).write_text("")
    config = {"docs_dir": str(tmp_path), "nav": [{"A": "a.md"}, {"Deeper": [{"B": "b.md"}]}]}
    assert on_config(config)["nav"][2:] == [{"More": ["new.md", "newer.md"]}]
    assert len(on_config(config)["nav"]) == 3
