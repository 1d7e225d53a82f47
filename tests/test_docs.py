"""What the documentation shows works: Python runs, commands and flags exist, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from poseidon.cli import CAFFE, POSEIDON, parse
from poseidon.cli.caffe_tools import TOOLS, tool_program

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = {"caffe": CAFFE, "poseidon": POSEIDON, **{name: tool_program(name) for name in TOOLS}}
# A block that names no language is shell if it begins with one of these.
COMMANDS = ("git", "pip", "python", "caffe", "poseidon", "cd", "source", "./", ".venv/")

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.M | re.S)
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


@dataclass(frozen=True, slots=True)
class Block:
    """Fenced text of a page, without its indentation."""

    where: str
    language: str
    text: str

    @property
    def is_shell(self) -> bool:
        return self.language in ("sh", "bash", "shell") or (not self.language and self.text.startswith(COMMANDS))


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        body = re.sub(f"^{match[1]}", "", match[3], flags=re.M)
        found.append(Block(f"{page.relative_to(ROOT)}:{line}", match[2], body))
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def test_the_readme_runs(monkeypatch, tmp_path):
    """From top to bottom, as somebody reads it: later blocks may use what earlier ones made."""
    monkeypatch.chdir(ROOT)
    blocks = [block for block in blocks_of(ROOT / "README.md") if block.language == "python"]
    assert blocks
    names: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        path, line = block.where.split(":")
        exec(compile("\n" * (int(line) - 1) + block.text, path, "exec"), names)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=lambda block: block.where)
def test_python_is_python(block):
    compile(block.text, block.where, "exec")


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.is_shell], ids=lambda block: block.where)
def test_shell_is_shell(block):
    checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    for words in command_lines(block.text):
        check_command(words)


def command_lines(text: str) -> list[list[str]]:
    """The commands of a block, each as its words; variables set in front of one are left out."""
    lines = []
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||[|;]", line.partition(" #")[0]):
            words = shlex.split(part, comments=True)
            while words and re.match(r"\w+=", words[0]):
                words.pop(0)
            if words:
                lines.append(words)
    return lines


def check_command(words: list[str]) -> None:
    name = words[0].removeprefix(".venv/bin/")
    words = words[: words.index(">")] if ">" in words else words
    is_tool = name in TOOLS
    if name in PROGRAMS and (is_tool or (len(words) > 1 and not words[1].startswith("--"))):
        parse(PROGRAMS[name], [re.sub(r"^\[|\]$", "", word) for word in words[1:]])
    for word in words:
        if re.fullmatch(r"(\./|tools/|bench/|models/|examples/|tests/)[\w./-]+\.(sh|py|prototxt)", word):
            assert (ROOT / word).exists(), f"there is no {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in _LINK.findall(page.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_a_wrong_flag_would_be_noticed():
    with pytest.raises(Exception, match="there is no flag --slover"):
        check_command(["caffe", "train", "--slover=x"])
    with pytest.raises(AssertionError, match=r"there is no \./gone\.sh"):
        check_command(["./gone.sh"])
    assert command_lines("A=1 ./x.sh a  # why\ncd b && caffe train \\\n  -solver s | tee log") == [
        ["./x.sh", "a"],
        ["cd", "b"],
        ["caffe", "train", "-solver", "s"],
        ["tee", "log"],
    ]
