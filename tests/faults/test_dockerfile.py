"""The Dockerfile's steps, run without Docker: folders of the image are folders of the test, apt only says what it would
install, and pip takes what torch and the rest are from this environment instead of downloading them again."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def steps() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in text.splitlines() if line.strip()]


def test_the_base_is_an_argument():
    assert [step for step in steps() if step[0] in ("ARG", "FROM")][:2] == [
        ("ARG", "BASE=debian:bookworm-slim"),
        ("FROM", "${BASE}"),
    ]


def test_what_is_copied_is_there():
    copied = [path for kind, words in steps() if kind == "COPY" for path in shlex.split(words)[:-1]]
    assert {"poseidon", "caffe", "pyproject.toml"} <= set(copied)
    assert all((ROOT / path).exists() for path in copied)


def placed(text: str, root: Path) -> str:
    return text.replace("/opt/", f"{root}/opt/")


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("image")
    (root / "opt").mkdir()
    environ = {**os.environ, "PIP_NO_DEPS": "1", "PIP_OPTIONS": ""}
    environ.pop("PYTHONPATH", None)
    simulated = root / "apt.conf"
    simulated.write_text('APT::Get::Simulate "true";\n')
    for kind, words in steps():
        if kind == "COPY":
            *sources, target = shlex.split(placed(words, root))
            for source in sources:
                path = ROOT / source
                if path.is_dir():
                    shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    Path(target).mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target)
        elif kind == "RUN" and "apt-get" in words:
            # The step removes apt's lists: in a view of the files where they are empty.
            script = f"mount --make-rprivate / && mount -t tmpfs none /var/lib/apt/lists && {words}"
            command = ["unshare", "--mount", "sh", "-ec", script]
            variables = {**environ, "APT_CONFIG": str(simulated)}
            subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)
        elif kind == "RUN":
            subprocess.run(["sh", "-ec", placed(words, root)], env=environ, check=True, stdout=subprocess.DEVNULL)
    return root


@pytest.mark.full
def test_the_image_has_the_command(image):
    """Run as its ENTRYPOINT says, outside of this checkout; what pip left out comes from this environment."""
    (entry,) = [words for kind, words in steps() if kind == "ENTRYPOINT"]
    assert entry == '["poseidon"]'
    environ = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    words = [f"{image}/opt/venv/bin/poseidon", "train", "--help"]
    done = subprocess.run(words, env=environ, cwd=image, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--hostfile" in done.stdout
    where = [f"{image}/opt/venv/bin/python", "-I", "-c", "import poseidon; print(poseidon.__file__)"]
    found = subprocess.run(where, cwd=image, capture_output=True, text=True, check=True).stdout
    assert found.startswith(f"{image}/opt/venv/lib/"), "installed, not linked"
