"""The report of `hdvpd eval` in a real browser: videos play, phones show it, names are text."""

import numpy as np
import pytest
from browsers import pixels
from extras import needed
from recordings import HTML, make_recording
from summaries import make_summary

from hdvpd.evaluation import report
from hdvpd.evaluation.videos import write_video

BLUE = 2
PHONE = {"width": 360, "height": 640}


def write_page(folder, **given):
    frames = [np.full((48, 64, 3), shade, np.uint8) for shade in (40, 120, 200)]
    write_video(folder / "clip.mp4", frames, 2)
    video = report.Video(HTML, (folder / "clip.mp4").read_bytes(), b"no picture")
    run = report.RunReport(
        name=HTML,
        summary=make_summary(),
        config_toml=f"name = {HTML!r}",
        facts={HTML: HTML},
        videos=(video,),
        **given,
    )
    page = folder / "index.html"
    page.write_text(report.render_report([run], [b"no picture"]), encoding="utf-8")
    return page


def test_a_rollout_in_three_dimensions_is_one_click_away(tmp_path, open_page):
    needed("viser")
    from hdvpd.viewing.offline import render_page

    (tmp_path / "scenes").mkdir()
    (tmp_path / "scenes" / "episode 3.html").write_text(render_page(make_recording()))
    page = open_page(write_page(tmp_path, scene="scenes/episode%203.html"))
    page.get_by_role("link", name="The first rollout in three dimensions").click()
    for _ in range(300):
        if (pixels(page)[..., BLUE] > 200).sum() > 100:
            break
        page.wait_for_timeout(100)
    else:
        pytest.fail("no particle is drawn")
    assert page.url.endswith("scenes/episode%203.html")


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
