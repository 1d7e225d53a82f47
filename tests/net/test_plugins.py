"""Layers of one's own: the documented example runs, from a file, a module, an installed package, and as a command."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from poseidon.cli import main
from poseidon.errors import NetError, UsageError
from poseidon.net import Net, registry
from poseidon.net.plugins import load_plugins
from poseidon.spec import parse_net

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S)
LAYER = next(text for language, text in BLOCKS if language == "python" and "@register" in text)
NET = next(text for language, text in BLOCKS if not language and text.startswith("name:"))
USE = next(text for language, text in BLOCKS if language == "python" and "load_plugins" in text)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the page's files; afterwards the registry is what it was."""
    (tmp_path / "my_layers.py").write_text(LAYER)
    (tmp_path / "net.prototxt").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_LAYERS", dict(registry._LAYERS))
    modules = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if "my_layers" in name or name.startswith("offered"):
            del sys.modules[name]


def test_the_page_runs(folder):
    names: dict = {}
    exec(compile(USE, "docs/plugins.md", "exec"), names)
    net = names["net"]
    x = torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        net.params["mish1"][0].copy_(torch.tensor([0.5, 1.0, 2.0]))
    beta = np.array([0.5, 1.0, 2.0]).reshape(1, 3, 1, 1)
    want = x.numpy() * np.tanh(np.log1p(np.exp(beta * x.numpy())))
    np.testing.assert_allclose(net(data=x)["mish1"].detach().numpy(), want, rtol=1e-5, atol=1e-6)


def test_its_parameters_are_saved_loaded_and_frozen_like_any(folder):
    load_plugins(["my_layers"])
    net = Net("net.prototxt", phase="TRAIN", freeze=["mish*"])
    with torch.no_grad():
        net.params["mish1"][0].fill_(3)
    net.save("w.caffemodel")
    assert Net("net.prototxt", "w.caffemodel").params["mish1"][0].tolist() == [3, 3, 3]
    assert net.learnable[0].rate == 0


def test_a_plug_in_is_loaded_once(folder):
    load_plugins(["my_layers.py", "./my_layers.py", str(folder / "my_layers.py")])
    assert "Mish" in registry.layer_types()


def test_the_command_line_loads_plug_ins(folder, monkeypatch, capfd):
    words = ["time", "--model=net.prototxt", "--iterations=1"]
    assert main(words) == 1
    told = capfd.readouterr().err
    assert "layer 'mish1': unknown layer type 'Mish' (did you mean 'Swish'?); known types: AbsVal, " in told
    assert "load it with --plugin FILE.py" in told
    assert main([*words, "--plugin=my_layers.py"]) == 0
    registry._LAYERS.pop("Mish")
    sys.modules.pop(next(name for name in sys.modules if "my_layers" in name))
    monkeypatch.setenv("POSEIDON_PLUGINS", "my_layers.py")
    assert main(words) == 0


def offer(folder: Path, value: str, package: str = "offered") -> None:
    """An installed package, as far as Python can tell: a folder on the path with metadata."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[poseidon.layers]\nMish = {value}\n")


def test_installed_packages_offer_layers_without_being_asked(folder):
    offer(folder, "my_layers:Mish")
    assert "my_layers" not in sys.modules
    assert Net("net.prototxt").layers["mish1"].num_params == 1
    assert "Mish" in registry.layer_types()


def test_a_class_that_did_not_register_itself_is_registered(folder):
    (folder / "my_layers.py").write_text(LAYER.replace('@register("Mish")', ""))
    offer(folder, "my_layers:Mish")
    assert Net("net.prototxt").layers["mish1"].type_name == "Mish"


def test_two_packages_with_one_type(folder):
    offer(folder, "my_layers:Mish")
    offer(folder, "my_layers:Mish", "again")
    with pytest.raises(UsageError, match="'Mish' comes with several packages: again, offered; uninstall all but one"):
        Net("net.prototxt")


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("my_layers:json", NetError, "offers <module 'json'.*expected a Layer class"),
        ("my_layers:Nothing", UsageError, "the plug-in of package 'offered' cannot be loaded: AttributeError"),
        ("not_there:Mish", UsageError, "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_offers_that_are_no_layers(folder, value, error, message):
    (folder / "my_layers.py").write_text("import json")
    offer(folder, value)
    with pytest.raises(error, match=message):
        Net("net.prototxt")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.py", None, "plug-in 'gone.py': there is no such file; give a Python file or the name of a module"),
        ("not_a_module", None, "plug-in 'not_a_module' cannot be loaded: ModuleNotFoundError: No module named"),
        ("bad.py", "1 / 0", "plug-in 'bad.py' cannot be loaded: ZeroDivisionError: division by zero"),
        ("bad.py", "def", "plug-in 'bad.py' cannot be loaded: SyntaxError"),
        (
            "bad.py",
            "from poseidon.net.registry import register\nregister('ReLU')(object)",
            "cannot be loaded: ValueError: layer type 'ReLU' is registered twice",
        ),
        (
            "bad.py",
            "from poseidon.net.layer import Layer\nfrom poseidon.net.registry import register\n"
            "@register('Half')\nclass Half(Layer):\n    def forward(self, x):\n        return x / 2",
            "ValueError: layer type 'Half': class Half does not write reshape, which every layer of its kind must",
        ),
    ],
)
def test_plug_ins_that_cannot_be_loaded(folder, name, text, message):
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(UsageError, match=re.escape(message)):
        load_plugins([name])


def test_the_nearest_name_is_offered():
    with pytest.raises(NetError, match=r"<text>:1: layer 'a': unknown layer type 'Relu' \(did you mean 'ReLU'\?\)"):
        Net(parse_net('layer { name: "a" type: "Relu" top: "x" }'))
