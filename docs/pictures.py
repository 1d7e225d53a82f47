"""The pictures of README and docs, each from a real run made for it: four emulated hosts train a digit net.

    sudo .venv/bin/python docs/pictures.py          docs/pictures/*.png; about two minutes

Needs root (network namespaces: `bench/netlab.py`), Chromium and Playwright (the extra `dev`), and the digits
(`poseidon data digits data`, as quickstart.sh makes them). The net has a large fully-connected layer and a few
convolutions, so that there is something to hide and something to hide it behind. Four hosts cannot compute at once on
two cores: each convolution is small, and followed by a pause that stands for the rest of a large one (`paced.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
NUM_HOSTS, RATE = 4, "1gbit"
PACED = """
layer {{ name: "{name}/rest" type: "Paced" bottom: "{name}" top: "{name}/rest"
  python_param {{ param_str: "{forward_s} {backward_s}" }} }}
layer {{ name: "{name}/relu" type: "ReLU" bottom: "{name}/rest" top: "{name}/relu" }}
"""
CONVOLUTION = """
layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}"
  convolution_param {{ num_output: {outputs} kernel_size: 5 stride: {stride} weight_filler {{ type: "xavier" }} }} }}
"""
DATA = """
layer {{ name: "data" type: "Data" top: "data" top: "label" include {{ phase: {phase} }}
  transform_param {{ scale: 0.00390625 crop_size: 24 }}
  data_param {{ source: "data/digits_{part}_lmdb" batch_size: {batch} backend: LMDB }} }}
"""
TOP = """
layer { name: "fc4" type: "InnerProduct" bottom: "conv3/relu" top: "fc4"
  inner_product_param { num_output: 1024 weight_filler { type: "xavier" } } }
layer { name: "relu4" type: "ReLU" bottom: "fc4" top: "fc4" }
layer { name: "fc5" type: "InnerProduct" bottom: "fc4" top: "fc5"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc5" bottom: "label" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc5" bottom: "label" top: "loss" }
"""
CONVOLUTIONS = (("conv1", "data", 16, 1), ("conv2", "conv1/relu", 24, 2), ("conv3", "conv2/relu", 32, 1))
FORWARD_S, BACKWARD_S = 0.015, 0.030  # of each pause


def net_text() -> str:
    text = 'name: "four hosts, 1 Gbit/s"'
    text += DATA.format(phase="TRAIN", part="train", batch=16) + DATA.format(phase="TEST", part="test", batch=100)
    for name, bottom, outputs, stride in CONVOLUTIONS:
        text += CONVOLUTION.format(name=name, bottom=bottom, outputs=outputs, stride=stride)
        text += PACED.format(name=name, forward_s=FORWARD_S, backward_s=BACKWARD_S)
    return text + TOP


SOLVER = """
net: "{folder}/net.prototxt"
test_iter: 10 test_interval: 40 base_lr: 0.02 lr_policy: "poly" power: 1 momentum: 0.9 weight_decay: 0.0005
display: 10 max_iter: 160 snapshot_after_train: false random_seed: 1
"""


def record(folder: Path) -> Path:
    """Trains on the lab's hosts; returns the run's folder."""
    (folder / "net.prototxt").write_text(net_text())
    (folder / "solver.prototxt").write_text(SOLVER.format(folder=folder))
    train = [sys.executable, "-m", "poseidon", "train", f"--solver={folder}/solver.prototxt", f"--record={folder}/run"]
    lab = [sys.executable, "-m", "bench.netlab", "run", "-n", str(NUM_HOSTS), "--rate", RATE, "--name", "picture", "--"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}  # hosts that share cores gain nothing by more
    subprocess.run([*lab, *train, "--plain", f"--plugin={ROOT}/docs/paced.py"], cwd=ROOT, env=environ, check=True)
    return folder / "run"


def photograph(browser: Browser, page_uri: str, scheme: str) -> None:
    """Pictures in one colour scheme."""
    ending = "" if scheme == "light" else "-dark"
    context = browser.new_context(
        viewport={"width": 1080, "height": 1300},
        color_scheme=scheme,
        device_scale_factor=2,
        reduced_motion="reduce",  # no smooth scrolling: a picture is taken at once
    )
    page = context.new_page()
    page.goto(page_uri)
    page.add_style_tag(content="nav { position: static !important }")
    middle = page.locator("[data-gantt^='iteration:']").nth(1)
    middle.click()
    page.locator("[data-gantt=out]").click()
    page.locator("#gantt").screenshot(path=PICTURES / f"timeline{ending}.png")
    if scheme == "light":
        page.locator("[data-gantt=all]").click()
        page.evaluate("window.scrollTo({ top: 0, behavior: 'instant' })")
        page.wait_for_function("window.scrollY === 0")
        page.screenshot(path=PICTURES / "report.png", clip={"x": 0, "y": 0, "width": 1080, "height": 900})
    context.close()


def main() -> int:
    chromium = os.environ.get("POSEIDON_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        raise SystemExit("pictures: there is no Chromium; install the package chromium")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        run = record(Path(name))
        subprocess.run([sys.executable, "-m", "poseidon", "report", str(run)], cwd=ROOT, check=True)
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        for scheme in ("light", "dark"):
            photograph(browser, (run / "report.html").as_uri(), scheme)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
