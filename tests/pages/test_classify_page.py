"""The page of `poseidon classify --serve`, in a real browser, and its server against requests no page would make."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
from playwright.sync_api import expect

import caffe
from poseidon.cli import POSEIDON, main, parse
from poseidon.cli.serving import MAX_UPLOAD_BYTES, image_server
from poseidon.net import Net
from poseidon.spec import parse_net

NET = """
name: "colours"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 7 weight_filler { type: "gaussian" std: 0.004 } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
LABELS = ["red", "green", "blue", "<b>bold</b>", "five", "six", "seven"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("served")
    (made / "deploy.prototxt").write_text(NET)
    Net(parse_net(NET), seed=3).save(made / "w.caffemodel")
    (made / "labels.txt").write_text("\n".join(LABELS))
    random = np.random.default_rng(1)
    cv2.imwrite(str(made / "image.png"), random.integers(0, 256, (40, 60, 3), dtype=np.uint8))
    (made / "notes.txt").write_text("not an image")
    return made


@pytest.fixture(scope="module")
def flags(folder) -> argparse.Namespace:
    words = [
        "classify", "--serve", f"--model_def={folder}/deploy.prototxt", f"--pretrained_model={folder}/w.caffemodel",
        f"--labels-file={folder}/labels.txt", "--images-dim=8,8", "--center-only",
    ]  # fmt: skip
    found = parse(POSEIDON, words)[1]
    found.images_dim, found.channel_swap = [8, 8], [2, 1, 0]
    return found


@pytest.fixture(scope="module")
def server(flags):
    with image_server(flags) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def expected(folder: Path) -> list[tuple[str, float]]:
    """The five best classes, by pycaffe's own arithmetic."""
    net = caffe.Classifier(
        str(folder / "deploy.prototxt"),
        str(folder / "w.caffemodel"),
        image_dims=[8, 8],
        raw_scale=255,
        channel_swap=[2, 1, 0],
    )
    scores = net.predict([caffe.io.load_image(str(folder / "image.png"))], oversample=False)[0]
    best = sorted(range(7), key=lambda index: -scores[index])[:5]
    return [(LABELS[index], float(scores[index])) for index in best]


# -- in the browser ---------------------------------------------------------------------------------------------------
def rows(page) -> list[tuple[str, str]]:
    page.wait_for_selector("#results li")
    return [
        (item.locator("span").nth(0).text_content(), item.locator(".score").text_content())
        for item in page.locator("#results li").all()
    ]


def test_an_image_that_is_chosen_shows_its_best_classes(server, folder, page, tmp_path):
    page.goto(server.url)
    assert page.title() == "poseidon classify"
    expect(page.locator("#net")).to_have_text("colours")
    page.set_input_files("#file", folder / "image.png")
    assert rows(page) == [(label, f"{100 * score:.1f} %") for label, score in expected(folder)]
    expect(page.locator("#status")).to_have_text(re.compile(r"^\d+ ms$"))
    assert page.locator("#shown").evaluate("image => [image.naturalWidth, image.naturalHeight]") == [60, 40]
    assert page.locator("#results b").count() == 0  # a label is text, whatever it looks like
    widths = page.locator(".bar i").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    np.testing.assert_allclose(widths, [100 * score for _, score in expected(folder)], atol=0.01)
    page.screenshot(path=os.environ.get("POSEIDON_SCREENSHOTS", str(tmp_path)) + "/classify.png")


def test_an_image_that_is_dropped(server, folder, page):
    page.goto(server.url)
    data = list((folder / "image.png").read_bytes())
    page.evaluate(
        """data => {
            const carried = new DataTransfer();
            carried.items.add(new File([new Uint8Array(data)], "image.png", { type: "image/png" }));
            const drop = document.getElementById("drop");
            drop.dispatchEvent(new DragEvent("dragover", { dataTransfer: carried, bubbles: true }));
            if (!drop.classList.contains("over")) throw new Error("the field does not light up");
            drop.dispatchEvent(new DragEvent("drop", { dataTransfer: carried, bubbles: true }));
        }""",
        data,
    )
    assert [label for label, _ in rows(page)] == [label for label, _ in expected(folder)]


def test_a_file_that_is_no_image_and_then_one_that_is(server, folder, page):
    page.goto(server.url)
    page.set_input_files("#file", folder / "notes.txt")
    page.wait_for_selector("#status.error")
    assert page.locator("#status").text_content() == "this is not an image that OpenCV can read"
    assert page.locator("#results li").count() == 0
    page.set_input_files("#file", folder / "image.png")
    assert len(rows(page)) == 5
    assert page.locator("#status.error").count() == 0


# -- without one ------------------------------------------------------------------------------------------------------
def ask(server, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    if body is not None and "Content_Length" not in headers:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if "json" in answer.headers["Content-Type"] else {"text": text}


def test_it_listens_on_the_loopback_interface_only(server):
    assert server.server_address[0] == "127.0.0.1"
    others = {entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in others:
        with pytest.raises(OSError, match=r".+"), socket.create_connection((address, server.server_port), timeout=5):
            pass


@pytest.mark.parametrize(
    "path",
    [
        "/../deploy.prototxt",
        "/page/../../spec/caffe.proto",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/index.html",
        "/classify",
    ],
)
def test_there_is_nothing_else_to_get(server, path):
    assert ask(server, "GET", path) == (404, {"error": "there is nothing here"})


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"Host": "evil.example"}, "this server answers under its own address only"),
        ({"Host": "127.0.0.1"}, "this server answers under its own address only"),
        ({"Origin": "http://evil.example"}, "this server answers its own page only"),
        ({"Origin": "null"}, "this server answers its own page only"),
    ],
)
def test_other_sites_cannot_use_it(server, headers, error):
    assert ask(server, "POST", "/classify", b"x", **headers) == (403, {"error": error})
    assert ask(server, "GET", "/net", **headers) == (403, {"error": error})


def test_both_its_names_and_its_own_page_can(server):
    own = f"localhost:{server.server_port}"
    assert ask(server, "GET", "/net", Host=own, Origin=f"http://{own}") == (200, {"name": "colours"})


def test_uploads_are_bounded(server):
    status, told = ask(server, "POST", "/classify", None, Content_Length=str(MAX_UPLOAD_BYTES + 1))
    assert (status, told) == (
        413,
        {"error": f"the image has {MAX_UPLOAD_BYTES + 1} bytes, expected at most {MAX_UPLOAD_BYTES}"},
    )
    for length in ("-1", "1e3", "٣", "9" * 5000):
        status, told = ask(server, "POST", "/classify", None, Content_Length=length.encode().decode("latin-1"))
        assert status in (411, 413)
    assert ask(server, "POST", "/classify", None)[0] == 411
    assert ask(server, "POST", "/elsewhere", b"x")[0] == 404
    assert ask(server, "POST", "/classify", b"") == (400, {"error": "this is not an image that OpenCV can read"})


def test_a_gray_image_and_the_answer_as_json(server, folder):
    gray = cv2.imencode(".png", np.full((9, 9), 128, np.uint8))[1].tobytes()
    status, told = ask(server, "POST", "/classify", gray)
    assert status == 200
    assert len(told["top"]) == 5
    assert sorted((row["score"] for row in told["top"]), reverse=True) == [row["score"] for row in told["top"]]


def test_the_command_refuses_images_of_too_many_pixels_and_ends_on_ctrl_c(folder):
    """In a process of its own: OpenCV reads its limit once, when it is loaded."""
    command = [sys.executable, "-m", "poseidon", "classify", "--serve", "--images-dim=8,8"]
    command += [f"--model_def={folder}/deploy.prototxt", f"--pretrained_model={folder}/w.caffemodel"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        told = process.stderr.readline()
        found = re.fullmatch(r"Drop images on http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)\n", told)
        assert found, told
        huge = cv2.imencode(".png", np.zeros((9000, 9000), np.uint8))[1].tobytes()
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
        connection.request("POST", "/classify", huge)
        answer = connection.getresponse()
        assert answer.status == 400
        assert json.loads(answer.read())["error"].startswith("OpenCV cannot decode this image")
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["image.png", "--serve"], "--serve takes images from its page, not 'image.png'"),
        (["--serve", "--port=70000"], "--port: expected 0 to 65535, got 70000"),
        ([], "INPUT is missing: an image, a folder of images, or a .npy"),
    ],
)
def test_wrong_use(folder, words, message, capsys):
    flags = [f"--model_def={folder}/deploy.prototxt", f"--pretrained_model={folder}/w.caffemodel"]
    assert main(["classify", *flags, *words]) == 1
    assert message in capsys.readouterr().err


def test_a_port_that_is_taken(server, flags, folder, capsys):
    taken = argparse.Namespace(**{**vars(flags), "port": server.server_port})
    with pytest.raises(Exception, match=rf"--port={server.server_port} cannot be had on 127.0.0.1: .*; give another"):
        image_server(taken)
