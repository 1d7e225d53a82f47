"""A real Chromium for tests of pages: the fixture `page` is a fresh tab.

It is Debian's (`.ci/browser.sh` installs it), driven by Playwright; nothing is downloaded. A page that logs an error or
throws fails its test. POSEIDON_CHROMIUM names another executable.

    def test_something(page):
        page.goto(url)
        expect(page.locator("h1")).to_have_text("…")       # waits; from playwright.sync_api import expect
        page.screenshot(path=...)

(`page.wait_for_function` evaluates text in the page, which a page's content security policy may forbid.)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright


# For one module at a time: Playwright occupies the thread's event loop as long as it runs.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = os.environ.get("POSEIDON_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.fail("tests/pages needs Chromium: apt-get install chromium, or leave it out with --ignore=tests/pages")
    with sync_playwright() as playwright:
        # Chromium's sandbox does not start for root, who runs the tests in containers.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.getuid() == 0 else [])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 900, "height": 900}, accept_downloads=False)
    tab = context.new_page()
    tab.set_default_timeout(20_000)
    problems: list[str] = []
    tab.on("pageerror", lambda problem: problems.append(str(problem)))
    # A request that is refused is logged as an error too; that one is for the test itself to judge.
    tab.on(
        "console",
        lambda line: (
            problems.append(line.text)
            if line.type == "error" and not line.text.startswith("Failed to load resource")
            else None
        ),
    )
    yield tab
    context.close()
    assert problems == []
