"""How often per second a cloud of the paper's size reaches a browser: python -m benchmarks.viewer.

Chromium draws the page of `hdvpd view` in software while the time is stepped as quickly as the
server takes it. Counted is what arrives at the page's socket; steps that a slow browser would only
queue up are dropped by viser. The alternative, side by side: 32-bit instead of 16-bit positions.
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import viser
from playwright.sync_api import Page, sync_playwright

from hdvpd.commands.system import PROGRAMS, find_program
from hdvpd.viewing.offline import start_server, stop_server

FLAGS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


def arrivals(
    page: Page, server: viser.ViserServer, precision: Any, n: int, seconds: float
) -> float:
    """Return how many clouds per second arrive."""
    rng = np.random.default_rng(0)
    positions = rng.uniform(-0.5, 0.5, (8, n, 3)).astype(np.float32)
    colors = rng.integers(0, 256, (8, n, 3), dtype=np.uint8)
    cloud = server.scene.add_point_cloud(
        "/cloud", positions[0], colors[0], point_size=0.006, precision=precision
    )
    page.wait_for_timeout(1000)
    page.evaluate("window.arrived = 0")
    begin, step = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        with server.atomic():
            cloud.points, cloud.colors = positions[step % 8].astype(precision), colors[step % 8]
        server.flush()
        step += 1
        page.wait_for_timeout(1)
    return page.evaluate("window.arrived") / (time.perf_counter() - begin)


COUNT = """
const Plain = Worker;
window.arrived = 0;
window.Worker = class extends Plain {
  constructor(...all) {
    super(...all);
    this.addEventListener("message", event => {
      const text = JSON.stringify(event.data, (k, v) => ArrayBuffer.isView(v) ? v.length : v);
      if (text && text.includes('"points"')) window.arrived += 1;
    });
  }
};
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--particles", type=int, default=32768)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    program = find_program(next(iter(PROGRAMS["browser"])))
    server = start_server("localhost", 0)
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            Path(folder), executable_path=program, args=FLAGS
        )
        page = context.new_page()
        page.add_init_script(COUNT)
        page.goto(f"http://localhost:{server.get_port()}")
        page.wait_for_timeout(3000)
        rates = {
            precision: arrivals(page, server, precision, given.particles, given.seconds)
            for precision in ("float16", "float32")
        }
        context.close()
    stop_server(server)
    for precision, rate in rates.items():
        print(f"{given.particles} particles, {precision}: {rate:.1f} updates/s")
    print(f"ratio {rates['float16'] / rates['float32']:.2f}")


if __name__ == "__main__":
    main()
