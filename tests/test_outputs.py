"""Results appear whole, and earlier ones are kept."""

import pytest

from hdvpd.__main__ import main
from hdvpd.basics.errors import UserError
from hdvpd.evaluation.outputs import publish, require_place, staging_folder


def write(target, report, files):
    with staging_folder(target) as staging:
        for name, text in files.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_text(text)
        publish(staging, target, report)


def contents(folder):
    return {
        str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()
    }  # fmt: skip


FILES = {"metrics.json": "1", "ssim.png": "curve", "videos/a.mp4": "film", "report.html": "page"}


def test_files_go_to_their_places_and_nothing_is_left_over(tmp_path):
    write(tmp_path / "eval", tmp_path / "report" / "index.html", FILES)
    assert contents(tmp_path) == {
        "eval/metrics.json": "1",
        "eval/ssim.png": "curve",
        "eval/videos/a.mp4": "film",
        "report/index.html": "page",
    }
    assert {p.name for p in (tmp_path / "eval").iterdir()} == {"metrics.json", "ssim.png", "videos"}


def test_equal_results_replace_each_other(tmp_path):
    report = tmp_path / "report.html"
    write(tmp_path / "eval", report, FILES)
    again = {**FILES, "ssim.png": "better curve"}
    del again["videos/a.mp4"]
    write(tmp_path / "eval", report, again)
    assert contents(tmp_path / "eval") == {
        "metrics.json": "1", "ssim.png": "better curve", "videos/a.mp4": "film",
    }  # fmt: skip


def test_other_results_are_kept_beside_the_new_ones(tmp_path):
    report = tmp_path / "report" / "index.html"
    for number in ("1", "2", "3"):
        write(tmp_path / "eval", report, {**FILES, "metrics.json": number, "report.html": number})
    found = contents(tmp_path)
    assert found["eval/metrics.json"] == found["report/index.html"] == "3"
    for number in ("1", "2"):
        kept = f"eval/previous-{number}"
        assert found[f"{kept}/metrics.json"] == found[f"{kept}/report.html"] == number
        assert found[f"{kept}/videos/a.mp4"] == "film"


def test_files_of_others_are_not_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for number in ("1", "2"):
        write(tmp_path, tmp_path / "report" / "index.html", {**FILES, "metrics.json": number})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_failure_changes_nothing(tmp_path):
    report = tmp_path / "report.html"
    write(tmp_path / "eval", report, FILES)
    before = contents(tmp_path)

    def fail():
        with staging_folder(tmp_path / "eval") as staging:
            (staging / "metrics.json").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert contents(tmp_path) == before


def test_a_failed_first_evaluation_leaves_no_folder(tmp_path):
    def fail():
        with staging_folder(tmp_path / "eval"):
            raise UserError("no data")

    with pytest.raises(UserError):
        fail()
    assert not (tmp_path / "eval").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "eval").write_text("a file")

    def start():
        with staging_folder(tmp_path / "eval"):
            raise AssertionError

    with pytest.raises(UserError, match=r"Could not write .*eval"):
        start()


def make(*files):
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")


@pytest.fixture
def places(tmp_path):
    """Two runs, a data set, a user's own folder, and an earlier evaluation."""
    for name in "ab":
        make(tmp_path / "runs" / name / "config.toml", tmp_path / "runs" / name / "scene.json")
    make(tmp_path / "data" / "dataset.json", tmp_path / "data" / "episodes" / "0" / "episode.json")
    make(tmp_path / "own" / "metrics.csv", tmp_path / "own" / "report" / "index.html")
    make(tmp_path / "earlier" / "metrics.json", tmp_path / "runs" / "b" / "eval" / "metrics.json")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("out", "names", "words"),
    [
        ("own", "a", "is no earlier evaluation"),
        ("runs", "a", "is no earlier evaluation"),
        ("data", "a", "the folder of a data set"),
        ("data/new", "a", "the folder of a data set"),
        ("runs/a", "a", "leave --out out for"),
        ("runs/a", "ab", "the folder of a run"),
        ("runs/a/eval", "ab", "the folder of a run"),
        ("runs/b/eval", "a", "the folder of a run"),
    ],
)
def test_a_folder_of_something_else_is_refused(places, capsys, out, names, words):
    before = contents(places)
    runs = [str(places / "runs" / name) for name in names]
    assert main(["eval", *runs, "--out", str(places / out)]) == 2
    message = capsys.readouterr().err
    assert f"--out {places / out}" in message
    assert words in message
    assert "hoose a" in message
    assert contents(places) == before


@pytest.mark.parametrize(
    ("out", "names"),
    [
        ("new", "ab"),
        ("empty", "ab"),
        ("earlier", "ab"),
        ("runs/comparison", "ab"),
        ("runs/a/eval", "a"),
        ("runs/a/contacts", "a"),
        ("runs/b/eval", "b"),
    ],
)
def test_a_new_folder_and_an_earlier_evaluation_are_taken(places, out, names):
    require_place(places / out, [places / "runs" / name for name in names])


def test_what_a_killed_evaluation_left_is_taken(tmp_path):
    make(tmp_path / "out" / ".partial-4711" / "metrics.json", tmp_path / "out" / "episodes.csv")
    require_place(tmp_path / "out", [tmp_path / "a"])
    make(tmp_path / "moved" / "previous-1" / "metrics.json", tmp_path / "moved" / "episodes.csv")
    require_place(tmp_path / "moved", [tmp_path / "a"])


def test_files_without_numbers_are_kept_too(tmp_path):
    make(tmp_path / "eval" / "metrics.csv", tmp_path / "report" / "index.html")
    write(tmp_path / "eval", tmp_path / "report" / "index.html", {**FILES, "metrics.csv": "1"})
    found = contents(tmp_path)
    assert (found["eval/metrics.csv"], found["report/index.html"]) == ("1", "page")
    kept = "eval/previous-1"
    assert found[f"{kept}/metrics.csv"] == found[f"{kept}/report.html"] == "mine"
