"""classify --serve: a page on this machine, on which images are dropped and their best classes shown.

    GET  /              the page, and its parts: page.css, page.js
    GET  /net           {"name": …}
    POST /classify      an image file as body; {"top": [{"label", "score"}, …], "milliseconds"} or {"error": …}

It listens on the loopback interface only. Requests must be addressed to it by a name of this machine, and those that
carry an Origin must come from its own page: so that no other page in the same browser can use it. There is nothing else
to be had: what is served comes from a table, not from paths. Uploads are bounded, and slow senders are left.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

import cv2
import numpy as np

from caffe.images import image_of
from poseidon.cli.classifying import classifier_of, labels_of
from poseidon.errors import DataError, UsageError
from poseidon.spec import read_net

ADDRESS = "127.0.0.1"
MAX_UPLOAD_BYTES = 20 << 20
_PATIENCE_S = 30
_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src blob:"


@dataclass(frozen=True, slots=True)
class Answer:
    """The best classes of an image, best first, and how long it took."""

    labels: Sequence[str]
    scores: Sequence[float]
    seconds: float


class ImageServer(ThreadingHTTPServer):
    """The server, for a function from an image file's bytes to its Answer. One image is looked at at a time."""

    daemon_threads = True

    def __init__(self, port: int, name: str, look: Callable[[bytes], Answer]) -> None:
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as problem:
            raise UsageError(f"--port={port} cannot be had on {ADDRESS}: {problem.strerror}; give another") from None
        self.name = name
        self._look = look
        self._turn = threading.Lock()

    @cached_property
    def hosts(self) -> frozenset[str]:
        """How requests may address this server."""
        return frozenset(f"{name}:{self.server_port}" for name in ("localhost", ADDRESS))

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def look(self, image: bytes) -> Answer:
        with self._turn:
            return self._look(image)


class _Handler(BaseHTTPRequestHandler):
    server: ImageServer
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_S
    server_version = "poseidon"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._is_ours():
            return
        if self.path == "/net":
            self._send_json(200, {"name": self.server.name})
        elif self.path in _PAGE:
            name, kind = _PAGE[self.path]
            self._send(200, (resources.files("poseidon.cli") / "page" / name).read_bytes(), kind)
        else:
            self._send_json(404, {"error": "there is nothing here"})

    def do_POST(self) -> None:
        if not self._is_ours():
            return
        if self.path != "/classify":
            self._refuse(404, "there is nothing here")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            self._refuse(411, "the length of the image is missing")
            return
        if int(length[:20]) > MAX_UPLOAD_BYTES:
            self._refuse(413, f"the image has {length[:20]} bytes, expected at most {MAX_UPLOAD_BYTES}")
            return
        self._classify(self.rfile.read(int(length)))

    def _classify(self, image: bytes) -> None:
        try:
            found = self.server.look(image)
        except DataError as problem:
            self._send_json(400, {"error": str(problem)})
            return
        top = [{"label": label, "score": score} for label, score in zip(found.labels, found.scores, strict=True)]
        self._send_json(200, {"top": top, "milliseconds": 1000 * found.seconds})

    def _is_ours(self) -> bool:
        """Whether somebody on this machine asks, and not a page of another site through his browser."""
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(403, "this server answers under its own address only")
            return False
        if origin is not None and origin.removeprefix("http://") not in self.server.hosts:
            self._refuse(403, "this server answers its own page only")
            return False
        return True

    # -- answers ----------------------------------------------------------------------------------------------------
    def _refuse(self, status: int, reason: str) -> None:
        """An answer given before the request was read to its end: the connection cannot go on."""
        self.close_connection = True
        self._send_json(status, {"error": reason})

    def _send_json(self, status: int, value: dict[str, Any]) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", _POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: who drops an image sees the answer."""


def image_server(found: argparse.Namespace) -> ImageServer:
    """A server for the net that the flags name, ready to serve."""
    classifier = classifier_of(found)
    is_color = classifier.blobs[classifier.inputs[0]].shape[1] != 1
    labels = labels_of(found.labels_file)

    def look(data: bytes) -> Answer:
        image = image_of(decoded(data), is_color)
        start = time.monotonic()
        scores = classifier.predict([image], not found.center_only).reshape(-1)
        seconds = time.monotonic() - start
        best = np.argsort(-scores, kind="stable")[: found.top]
        names = [labels[index] if index < len(labels) else f"class {index}" for index in best]
        return Answer(names, [float(score) for score in scores[best]], seconds)

    name = read_net(found.model_def).net.name or os.path.basename(found.model_def)
    return ImageServer(found.port, name, look)


def decoded(data: bytes) -> np.ndarray:
    """An uploaded image's pixels as OpenCV has them."""
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    except cv2.error as problem:  # an image larger than OpenCV is allowed to decode, among others
        raise DataError(f"OpenCV cannot decode this image ({problem.err})") from None
    if pixels is None:
        raise DataError("this is not an image that OpenCV can read")
    return pixels


def serve(found: argparse.Namespace) -> None:
    """Serves until Ctrl-C."""
    with image_server(found) as server:
        print(f"Drop images on {server.url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("", file=sys.stderr)
