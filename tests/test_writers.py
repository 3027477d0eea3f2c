"""Two processes never mix in one folder, and a disk that refuses is one message and no harm."""

import functools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_importers
import test_report
from disks import Mount
from matplotlib.figure import Figure
from test_outputs import contents

from hdvpd import eval as evaluation
from hdvpd.__main__ import main as command
from hdvpd.basics.errors import UserError
from hdvpd.basics.files import LOCK, FolderInUseError, locked
from hdvpd.config.experiments import apply_overrides
from hdvpd.data.importers.driver import import_dataset
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset
from hdvpd.evaluation import motion_plots, results
from hdvpd.evaluation.outputs import METRICS_FILE, publish, staging_folder
from hdvpd.evaluation.results import Evaluation, write_results
from hdvpd.model.compiled import compile_model

HOLD = """
import contextlib, sys, time
from pathlib import Path
from hdvpd.basics.files import locked
with contextlib.ExitStack() as held:
    for file in sys.argv[1:]:
        held.enter_context(locked(Path(file), "held", "none"))
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_free_again_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "new" / LOCK
    for _ in range(2):
        with locked(file, "in use", "none"):
            with pytest.raises(FolderInUseError, match="in use"), locked(file, "in use", "none"):
                pass
            assert file.is_file()
        assert not file.parent.exists()


def test_what_another_process_writes_is_refused_until_it_dies(
    tmp_path: Path, small_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, _ = test_importers.write_source("folder", tmp_path)
    out, other = tmp_path / "out", tmp_path / "other"
    words = {
        "the data set": [
            ["data", "simulate", "--out", str(out), "--episodes", "1", "--steps", "2"],
            ["data", "synthetic", "--out", str(out)],
            ["data", "import", "folder", str(source), "--out", str(out)],
        ],
        "an evaluation into": [["eval", str(small_run), "--out", str(out)]],
        "--out": [
            ["rollout", str(small_run), "--episode", "9", "--out", str(other)],
            ["plan", str(small_run), "--task", "push", "--out", str(other)],
        ],
    }
    files = [str(out / LOCK), str(tmp_path / f"{LOCK}-other")]
    holder = subprocess.Popen([sys.executable, "-c", HOLD, *files], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder, holder.stdout:
        assert holder.stdout.readline() == b"locked\n"
        for what, commands in words.items():
            for given in commands:
                assert command(given) == 2, given
                errors = capsys.readouterr().err
                assert f"Another process is writing {what}" in errors, (given, errors)
                assert given[given.index("--out") + 1] in errors
        assert contents(out) == {LOCK: ""}
        assert not other.exists()
        holder.kill()
        holder.wait()
    write_synthetic_dataset(out, episodes=1, steps=2, height=12, width=16, seed=0)
    assert len(Dataset(out).episodes) == 1


def test_a_data_set_killed_before_its_first_episode_can_begin_again(tmp_path: Path) -> None:
    for out in (tmp_path / "whole", tmp_path / "out"):
        if out.name == "out":
            (out / "episodes").mkdir(parents=True)
            (out / "robot.json").write_text("{}")
            (out / ".partial-dataset.json-1").write_text("{")
        write_synthetic_dataset(out, episodes=1, steps=2, height=12, width=16, seed=0)
    assert test_importers.content(tmp_path / "out") == test_importers.content(tmp_path / "whole")


def test_a_read_only_folder_is_one_message(
    read_only: Path, tmp_path: Path, small_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, _ = test_importers.write_source("folder", tmp_path)
    out = str(read_only / "out")
    for words in (
        ["data", "simulate", "--episodes", "1", "--steps", "2", "--out", out],
        ["data", "import", "folder", str(source), "--out", out],
        ["eval", str(small_run), "--out", out],
        ["rollout", str(small_run), "--episode", "9", "--out", out],
    ):
        assert command(words) == 2, words
        errors = capsys.readouterr().err
        assert "Read-only file system" in errors, words
        assert str(read_only) in errors


def test_an_import_onto_a_full_disk_keeps_what_is_finished(mount: Mount, tmp_path: Path) -> None:
    source, options = test_importers.write_source("folder", tmp_path)
    import_dataset("folder", source, tmp_path / "whole", **options)
    needed = sum(f.stat().st_blocks * 512 for f in (tmp_path / "whole").rglob("c.*"))
    out = mount(f"size={needed * 3 // 4}") / "out"
    with pytest.raises(UserError, match="No space left on device"):
        import_dataset("folder", source, out, **options)
    assert not list((out / "episodes").glob(".partial-*"))
    with pytest.raises(UserError, match="incomplete"):
        Dataset(out)
    subprocess.run(["mount", "-o", "remount,size=50m", str(out.parent)], check=True)
    import_dataset("folder", source, out, **options)
    assert test_importers.content(out) == test_importers.content(tmp_path / "whole")


NAME = "Lauf <img src=x onerror=alert(1)> & \n 'zwei' \"é\""
"""Of a run's folder and of its data set's: spaces, a newline, Unicode and markup."""


@pytest.fixture(scope="module")
def evaluations(
    small_run: Path, synthetic_dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Evaluation]:
    """A run with such a name, evaluated on a data set with such a name."""
    folder = tmp_path_factory.mktemp("names")
    run = Path(shutil.copytree(small_run, folder / "runs" / NAME))
    data = Path(shutil.copytree(synthetic_dataset, folder / NAME))
    ((name, found),) = evaluation.find_runs([run]).items()
    changes = {"data": {"path": str(data)}, "eval": {"num_steps": 2, "num_videos": 1}}
    configure = functools.partial(apply_overrides, overrides=changes, source="the test")
    ready = evaluation.prepare(found, None, configure)
    evaluated = evaluation.evaluate(name, ready, compile_model, say=lambda text: None)
    assert evaluated is not None
    return {name: evaluated}


def test_names_of_any_kind_are_shown_and_never_obeyed(
    evaluations: dict[str, Evaluation], tmp_path: Path
) -> None:
    write(evaluations, tmp_path / NAME)
    text = (tmp_path / NAME / "report.html").read_text()
    page = test_report.Page(text)
    assert page.open == []
    assert "<img src=x" not in text
    assert NAME in page.text
    assert str(evaluations[NAME].run.dataset.path) in page.text
    assert all(source.startswith("data:") for source in page.sources)


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw every plot once, for one evaluation: it is writing that is tried again."""

    def once(draw: Callable[[Any], Figure]) -> Callable[[Any], Figure]:
        figures: list[Figure] = []

        def plot(summaries: Any) -> Figure:
            figures[:] = figures or [draw(summaries)]
            return figures[0]

        return plot

    for module, name in (
        (results, "plot_curves"), (results, "plot_pixels"), (motion_plots, "plot_motion")
    ):  # fmt: skip
        monkeypatch.setattr(module, name, once(getattr(module, name)))
        monkeypatch.setattr(module, "to_png", functools.cache(module.to_png))


def write(evaluations: dict[str, Evaluation], target: Path) -> None:
    with staging_folder(target) as staging:
        write_results(staging, evaluations, ".", None)
        publish(staging, target, target / "report.html")


def test_a_disk_that_fills_during_an_evaluation_keeps_the_earlier_one(
    evaluations: dict[str, Evaluation], mount: Mount, drawn_once: None
) -> None:
    disk = mount("size=64m")
    write(evaluations, disk / "out")
    page = (disk / "out" / "report.html").stat().st_size
    needed = sum(f.stat().st_blocks * 512 for f in (disk / "out").rglob("*"))
    before = contents_of(disk / "out")
    for free in (4096, needed // 2, needed - page // 2):  # the last: all but the page fits
        filler = disk / "filler"
        with filler.open("wb") as file:
            file.write(bytes(free_space(disk) - free))
        with pytest.raises(UserError, match="No space left on device"):
            write(evaluations, disk / "out")
        assert contents_of(disk / "out") == before
        filler.unlink()
    write(evaluations, disk / "out")
    assert contents_of(disk / "out").keys() == before.keys()
    assert (disk / "out" / METRICS_FILE).is_file()


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def free_space(disk: Path) -> int:
    return shutil.disk_usage(disk).free
