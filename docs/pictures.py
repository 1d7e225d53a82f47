"""The pictures of README and docs, each from a real run made for it: four emulated hosts train a digit net.

    sudo .venv/bin/python docs/pictures.py          docs/pictures/*.png; about two minutes

Needs root (network namespaces: `bench/netlab.py`), Chromium and Playwright (the extra `dev`), and the digits
(`poseidon data digits data`, as quickstart.sh makes them). The net has a large fully-connected layer and a few
convolutions, so that there is something to hide and something to hide it behind.
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
NET = """
name: "four hosts, 1 Gbit/s"
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.00390625 crop_size: 24 }
  data_param { source: "data/digits_train_lmdb" batch_size: 32 backend: LMDB } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.00390625 crop_size: 24 }
  data_param { source: "data/digits_test_lmdb" batch_size: 100 backend: LMDB } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 32 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2"
  convolution_param { num_output: 48 kernel_size: 5 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" }
layer { name: "conv3" type: "Convolution" bottom: "conv2" top: "conv3"
  convolution_param { num_output: 64 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu3" type: "ReLU" bottom: "conv3" top: "conv3" }
layer { name: "fc4" type: "InnerProduct" bottom: "conv3" top: "fc4"
  inner_product_param { num_output: 768 weight_filler { type: "xavier" } } }
layer { name: "relu4" type: "ReLU" bottom: "fc4" top: "fc4" }
layer { name: "fc5" type: "InnerProduct" bottom: "fc4" top: "fc5"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc5" bottom: "label" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc5" bottom: "label" top: "loss" }
"""
SOLVER = """
net: "{folder}/net.prototxt"
test_iter: 10 test_interval: 40 base_lr: 0.02 lr_policy: "poly" power: 1 momentum: 0.9 weight_decay: 0.0005
display: 10 max_iter: 160 snapshot_after_train: false random_seed: 1
"""


def record(folder: Path) -> Path:
    """Trains on the lab's hosts; returns the run's folder."""
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(SOLVER.format(folder=folder))
    train = [sys.executable, "-m", "poseidon", "train", f"--solver={folder}/solver.prototxt", f"--record={folder}/run"]
    lab = [sys.executable, "-m", "bench.netlab", "run", "-n", str(NUM_HOSTS), "--rate", RATE, "--name", "picture", "--"]
    subprocess.run([*lab, *train, "--plain"], cwd=ROOT, check=True)
    return folder / "run"


def photograph(browser: Browser, page_uri: str, scheme: str) -> None:
    """Pictures in one colour scheme."""
    ending = "" if scheme == "light" else "-dark"
    context = browser.new_context(viewport={"width": 1080, "height": 1300}, color_scheme=scheme, device_scale_factor=2)
    page = context.new_page()
    page.goto(page_uri)
    page.add_style_tag(content="nav { position: static !important }")
    middle = page.locator("[data-gantt^='iteration:']").nth(1)
    middle.click()
    page.locator("[data-gantt=out]").click()
    page.locator("#gantt").screenshot(path=PICTURES / f"timeline{ending}.png")
    if scheme == "light":
        page.locator("[data-gantt=all]").click()
        page.evaluate("window.scrollTo(0, 0)")
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
