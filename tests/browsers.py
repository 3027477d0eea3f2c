"""Chromium without a display, driven by playwright: pages, their pixels, their complaints."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import extras
import numpy as np
import pytest
from PIL import Image

from hdvpd.commands.system import PROGRAMS, find_program

FLAGS = [
    "--no-sandbox",  # a container's root has none
    "--use-angle=swiftshader",  # WebGL without a GPU
    "--enable-unsafe-swiftshader",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]
WAIT_MS = 90_000
"""Longest wait for anything on a page: generous, as a machine may be busy with other tests."""


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """The system's browser, in a profile of its own."""
    api = extras.needed("playwright.sync_api")
    (names,) = PROGRAMS["browser"]
    program = find_program(names)
    if program is None:
        pytest.skip(extras.reason("browser", f"none of {', '.join(names)} is installed"))
    with api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("browser"),
            executable_path=program,
            headless=True,
            args=FLAGS,
            viewport={"width": 1000, "height": 480},
            device_scale_factor=1,
        )
        context.set_default_timeout(WAIT_MS)
        yield context
        context.close()


@pytest.fixture
def open_page(browser) -> Iterator[Callable]:
    """Open addresses; at the end, no page may have complained."""
    pages, complaints = [], []

    def open_(address: str | Path, **settings):
        page = browser.new_page()
        if settings:
            page.set_viewport_size(settings)
        pages.append(page)
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address.as_uri() if isinstance(address, Path) else address)
        return page

    yield open_
    for page in pages:
        page.close()
    assert complaints == []


def pixels(page, width: int = 620) -> np.ndarray:
    """Return what is seen of a page from the left to a column, 0 to 255; axes (h w 3)."""
    height = page.viewport_size["height"]
    picture = page.screenshot(clip={"x": 0, "y": 0, "width": width, "height": height})
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)
