"""The report of `hdvpd eval` in a real browser: videos play, phones show it, names are text."""

import numpy as np
from recordings import HTML
from summaries import make_summary

from hdvpd.evaluation import report
from hdvpd.evaluation.videos import write_video

PHONE = {"width": 360, "height": 640}


def write_page(folder):
    frames = [np.full((48, 64, 3), shade, np.uint8) for shade in (40, 120, 200)]
    write_video(folder / "clip.mp4", frames, 2)
    video = report.Video(HTML, (folder / "clip.mp4").read_bytes(), b"no picture")
    run = report.RunReport(
        name=HTML,
        summary=make_summary(),
        config_toml=f"name = {HTML!r}",
        facts={HTML: HTML},
        videos=(video,),
    )
    page = folder / "index.html"
    page.write_text(report.render_report([run], [b"no picture"]), encoding="utf-8")
    return page


def test_the_report_in_a_browser(tmp_path, open_page):
    page = open_page(write_page(tmp_path), **PHONE)
    # At a telephone's width nothing but tables, which scroll by themselves, is wider than the page.
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    # The videos play: Chromium decodes them, and time passes.
    page.evaluate("document.querySelector('video').play()")
    page.wait_for_function("document.querySelector('video').currentTime > 0.2")
    assert page.evaluate("document.querySelector('video').videoWidth") == 64
    # Names with markup are shown as they are; `open_page` fails if one ran or was asked for.
    assert page.locator("script, img[src=x]").count() == 0
    assert HTML in page.locator("h2").first.inner_text()
    page.locator("details summary").first.click()
    assert page.locator("details").first.get_attribute("open") is not None
