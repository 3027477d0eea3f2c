"""The viewer in a real browser: what is drawn, when it changes, and that nothing complains."""

import threading

import numpy as np
import pytest
from browsers import pixels
from extras import needed
from recordings import HTML, MadeUp, make_recording

needed("viser")

from hdvpd.viewing.offline import render_page  # noqa: E402 - they import viser
from hdvpd.viewing.serving import served  # noqa: E402

RED, BLUE = 0, 2
ASIDE = (0.17, 0.25, 0.3)  # across the line of sight, so that cubes here and there are apart [m]
ALL = 507  # particles of the cube, without padding


@pytest.fixture(scope="module")
def shown():
    """A page of the made-up source, served for all tests of this file."""
    with served(MadeUp(), "localhost", 0) as page:
        yield page


@pytest.fixture
def page(shown, open_page):
    """The page as it is when it is first opened, in a browser; only particles are drawn."""
    shown.editor.edits.clear()
    shown.playing.value = False
    shown.time.value, shown.shown.value = 0, "prediction"
    shown.coloring.value = "rendered colour"
    shown.scene.value = shown.scene.options[0]
    shown.draw_only_particles()
    shown.reload()
    opened = open_page(address(shown))
    opened.get_by_text("colour by").wait_for()
    until(opened, lambda p: count(p, BLUE) > 200)
    return opened


def address(shown) -> str:
    return f"http://localhost:{shown.server.get_port()}"


def strong(picture: np.ndarray, channel: int) -> np.ndarray:
    """Return which pixels are of one channel; viser's orange notice is of none."""
    others = np.delete(picture, channel, axis=-1).max(-1)
    return (picture[..., channel] > others + 60) & (others < 100)


def count(picture: np.ndarray, channel: int) -> int:
    return int(strong(picture, channel).sum())


def column(picture: np.ndarray, channel: int) -> float:
    """Return where a colour is, from left to right [px]."""
    return float(np.nonzero(strong(picture, channel))[1].mean())


def until(opened, holds) -> np.ndarray:
    """Wait until the picture is as it should be."""
    for _ in range(600):  # a loaded machine draws a picture in seconds
        picture = pixels(opened)
        if holds(picture):
            return picture
        opened.wait_for_timeout(100)
    raise AssertionError("the picture never was what it should be")


def edit(shown, page, name: str) -> None:
    """Click until an edit follows: while the folder unfolds, a click may land beside the button."""
    for _ in range(5):
        page.get_by_role("button", name=name).click()
        for _ in range(100):
            if shown.editor.edits:
                return
            page.wait_for_timeout(100)
    pytest.fail(f"no edit follows a click on {name}")


def says(opened, text: str) -> None:
    """Wait until a field of the page holds a text."""
    opened.wait_for_function(
        "text => [...document.querySelectorAll('input')].some(x => x.value.includes(text))",
        arg=text,
    )


def tick(box, wanted):
    """Click until a box is as wanted: while its folder unfolds, a click may land beside it."""
    for _ in range(20):
        if box.is_checked() == wanted:
            return
        box.click(force=True)
        box.page.wait_for_timeout(500)
    pytest.fail("the box does not change")


def test_time_and_layer_decide_what_is_drawn(shown, page):
    first = pixels(page)
    assert count(first, RED) == 0
    slider = page.get_by_role("slider").first
    slider.focus()
    slider.press("End")
    last = until(page, lambda p: abs(column(p, BLUE) - column(first, BLUE)) > 20)
    assert shown.time.value == 4
    page.get_by_label("show", exact=True).click()
    page.get_by_role("option", name="truth").click()
    truth = until(page, lambda p: count(p, RED) > 200 and count(p, BLUE) == 0)
    # One goes left, the other right.
    moves = column(last, BLUE) - column(first, BLUE), column(truth, RED) - column(first, BLUE)
    assert moves[0] * moves[1] < 0
    shown.shown.value = "both"
    until(page, lambda p: count(p, RED) > 100 and count(p, BLUE) > 100)
    shown.shown.value, shown.coloring.value = "prediction", "displacement"
    until(page, lambda p: count(p, BLUE) == 0)


def test_playing_moves_on(shown, page):
    first = pixels(page)
    tick(page.get_by_label("play", exact=True), True)
    until(page, lambda p: abs(column(p, BLUE) - column(first, BLUE)) > 20)
    tick(page.get_by_label("play", exact=True), False)


def test_what_is_in_the_box_is_removed_and_comes_back(shown, page):
    page.get_by_text("Edit", exact=True).click()
    page.get_by_label("selection box").wait_for()  # the folder unfolds slowly
    tick(page.get_by_label("selection box"), True)
    before = count(pixels(page), BLUE)
    page.get_by_role("button", name="Select what is in the box").click()
    says(page, f"{ALL} particles")
    until(page, lambda p: count(p, BLUE) < before / 2)  # what is selected is marked
    edit(shown, page, "Remove")
    tick(page.get_by_label("selection box"), False)
    until(page, lambda p: count(p, BLUE) == 0)
    assert [edit.action for edit in shown.editor.edits[0]] == ["remove"]
    assert shown.shown.options == ("prediction",)  # what was edited has no truth
    page.get_by_role("button", name="Undo all").click()
    until(page, lambda p: count(p, BLUE) > 200)


def select_and_drag(shown, page, to) -> None:
    """Select the cube, then put the box elsewhere, as who drags its handle does."""
    page.get_by_role("button", name="Select what is in the box").click()
    says(page, f"{ALL} particles")
    shown.editor.handle.position = to


def test_what_is_in_the_box_is_moved_to_where_it_is_dragged(shown, page):
    first, start = pixels(page), tuple(shown.editor.handle.position)
    page.get_by_text("Edit", exact=True).click()
    page.get_by_label("selection box").wait_for()
    select_and_drag(shown, page, ASIDE)
    edit(shown, page, "Move to the box")
    moved = until(page, lambda p: count(p, BLUE) > 200 and abs(shift(p, first)) > 15)
    assert not (strong(moved, BLUE) & strong(first, BLUE)).any()
    page.get_by_role("button", name="Undo all").click()
    until(page, lambda p: count(p, BLUE) > 200 and abs(shift(p, first)) < 2)
    shown.editor.handle.position = start


def test_a_copy_of_what_is_in_the_box_stands_beside_it(shown, page):
    first, start = pixels(page), tuple(shown.editor.handle.position)
    page.get_by_text("Edit", exact=True).click()
    page.get_by_label("selection box").wait_for()
    select_and_drag(shown, page, ASIDE)
    edit(shown, page, "Copy to the box")
    both = until(page, lambda p: count(p, BLUE) > 1.6 * count(first, BLUE))
    kept = (strong(both, BLUE) & strong(first, BLUE)).sum()
    assert kept > 0.9 * count(first, BLUE)
    page.get_by_role("button", name="Undo all").click()
    until(page, lambda p: count(p, BLUE) < 1.1 * count(first, BLUE))
    shown.editor.handle.position = start


def shift(picture: np.ndarray, first: np.ndarray) -> float:
    return column(picture, BLUE) - column(first, BLUE)


def test_a_view_from_the_browser_is_rendered(shown, page):
    shown.time.value = 2
    page.get_by_text("Novel view").click()
    page.get_by_role("button", name="Render from here").click()
    page.get_by_text("The model's view from here").wait_for()
    page.get_by_role("button", name="Close").last.click()
    page.get_by_text("The model's view from here").wait_for(state="hidden")
    shown.time.value = 0
    page.get_by_role("button", name="Render from here").click()
    says(page, "no view from the past")


def test_names_from_data_are_text_and_several_browsers_see_the_same(shown, page, open_page):
    other = open_page(address(shown))
    until(other, lambda p: count(p, BLUE) > 200)
    page.close()  # in the middle, with another still looking
    shown.scene.value = shown.scene.options[1]
    shown.camera.value = HTML
    says(other, "<script>")
    shown.time.value = 4
    until(other, lambda p: count(p, BLUE) > 200)
    assert other.locator("img[src=x]").count() == 0


def test_who_leaves_in_the_middle_disturbs_nobody(shown, page, open_page, monkeypatch, caplog):
    other, third = open_page(address(shown)), open_page(address(shown))
    first = until(other, lambda p: count(p, BLUE) > 200)
    slider = page.get_by_role("slider").first
    slider.focus()
    slider.press("End")  # one moves it, all see it
    until(other, lambda p: abs(shift(p, first)) > 20)
    tick(page.get_by_label("play", exact=True), True)
    page.close()  # while it plays
    until(other, lambda p: abs(shift(p, first)) < 2)
    until(other, lambda p: abs(shift(p, first)) > 20)
    shown.playing.value = False
    # One asks for a picture and is gone before it is there.
    asked, gone = threading.Event(), threading.Event()

    def render(*_):
        asked.set()
        assert gone.wait(60)
        return np.zeros((12, 16, 3), np.uint8)

    monkeypatch.setattr(shown.source, "render", render)
    clients = len(shown.server.get_clients())
    third.get_by_text("Novel view").click()
    third.get_by_role("button", name="Render from here").click()
    assert asked.wait(60)
    third.close()
    for _ in range(300):
        if len(shown.server.get_clients()) < clients:
            break
        other.wait_for_timeout(100)
    gone.set()
    says(other, "has gone")
    shown.time.value = 0
    until(other, lambda p: abs(shift(p, first)) < 2)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_page_without_a_server_plays(tmp_path, open_page):
    file = tmp_path / "page.html"
    file.write_text(render_page(make_recording("a title")))
    asked = []
    opened = open_page("about:blank")
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(file.as_uri())
    until(opened, lambda p: count(p, BLUE) > 200)
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
