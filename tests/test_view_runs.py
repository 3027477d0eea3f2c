"""What is shown of runs and data sets: the model's own rollouts, edited and watched; the verbs."""

import ctypes
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from extras import needed

from hdvpd.__main__ import HDVPD
from hdvpd.__main__ import main as command
from hdvpd.basics.errors import UserError
from hdvpd.data.windows import read_window
from hdvpd.training import packed
from hdvpd.training.checkpoints import CheckpointStore
from hdvpd.viewing import editing
from hdvpd.viewing.recording import PREDICTION, TRUTH
from hdvpd.viewing.runs import RunSource
from hdvpd.viewing.sources import DatasetSource

needed("viser")

STEPS = 2


@pytest.fixture(scope="module")
def source(small_run):
    """A run in progress: three steps of 20."""
    return RunSource(small_run, steps=STEPS)


@pytest.fixture(scope="module")
def recording(source):
    return source.load(0)


@pytest.fixture
def rollout(source, tmp_path, monkeypatch):
    """A folder of two plans, rolled out from episode 8."""
    from hdvpd.world.command import roll_out

    monkeypatch.setattr("hdvpd.world.command.load", lambda run, step: source.world)
    monkeypatch.setattr("hdvpd.viewing.rollouts.load", lambda run, step: source.world)
    np.save(tmp_path / "wait.npy", np.zeros((STEPS, 3), np.float32))
    actions = ("8", str(tmp_path / "wait.npy"))
    roll_out(source.folder, episode=8, out=tmp_path / "it", actions=actions, steps=STEPS)
    return tmp_path / "it"


def test_a_data_set_is_shown_as_it_was_measured(synthetic_dataset):
    source = DatasetSource(synthetic_dataset)
    recording = source.load(9)
    assert len(source.titles) == 10
    assert recording.num_times == recording.num_observed == 7
    assert set(recording.layers) == {TRUTH}
    particles = recording.layers[TRUTH].particles
    low, high = (np.asarray(corner) for corner in recording.workspace)
    seen = particles.positions[particles.mask]
    assert len(seen) > 1000
    assert ((seen >= low) & (seen <= high)).all()
    with pytest.raises(UserError, match="no model"):
        source.render(recording, 0, np.eye(4), 1.0)
    with pytest.raises(UserError, match="no episode 99"):
        DatasetSource(synthetic_dataset, 99)


def test_of_a_long_episode_evenly_spaced_frames_are_read(synthetic_dataset, monkeypatch):
    whole, read = DatasetSource(synthetic_dataset).load(9), []
    _, views, height, width = whole.layers[TRUTH].depth_m.shape

    def noted(dataset, number, start, length, config):
        read.append((start, length))
        return read_window(dataset, number, start, length, config)

    monkeypatch.setattr("hdvpd.viewing.sources.MAX_PIXELS", 4 * views * height * width - 1)
    monkeypatch.setattr("hdvpd.viewing.sources.read_window", noted)
    source = DatasetSource(synthetic_dataset)
    some = source.load(9)
    assert read == [(0, 2), (3, 2), (5, 2)]  # frames 0, 3 and 6, in the shortest windows
    assert source.titles[9] == some.title == f"{whole.title}, frames 0, 3, 6 ... of 7"
    assert some.num_times == some.num_observed == 3
    assert [some.time_s(t) for t in range(3)] == [whole.time_s(t) for t in (0, 3, 6)]
    for name in ("rgb", "depth_m"):
        known = getattr(whole.layers[TRUTH], name)
        np.testing.assert_array_equal(getattr(some.layers[TRUTH], name), known[::3])
    np.testing.assert_array_equal(some.robot, whole.robot[::3])
    np.testing.assert_array_equal(some.camera.camera_to_world, whole.camera.camera_to_world[::3])


def test_a_run_in_progress_rolls_out_its_validation(source, recording):
    assert source.in_training()
    assert source.episodes == (8,)  # of ten, the ninth is for validation
    assert set(recording.layers) == {TRUTH, PREDICTION}
    assert recording.num_times == STEPS + 2
    particles = recording.layers[PREDICTION].particles
    assert particles.features is not None
    assert particles.age.tolist() == [0, 0, 1, 2]
    assert np.isfinite(particles.positions).all()
    moved = particles.positions[2] - particles.positions[1]
    assert np.abs(moved[particles.mask[1]]).max() > 1e-4
    assert recording.ssim.shape == (STEPS + 2, len(recording.cameras))
    assert np.isfinite(recording.ssim).all()
    assert recording.describe(2) == "rollout step 0 (+0.5 s)"


def test_what_was_edited_is_rolled_out_again(source, recording):
    particles = recording.layers[PREDICTION].particles
    pose = np.eye(4)
    pose[:3, 3] = particles.positions[1][particles.mask[1]].mean(0)
    box = editing.Box(pose, np.full(3, 0.3))
    held = particles.mask[1] & box.holds(particles.positions[1])
    changed = source.load(0, [editing.Edit("remove", box, pose)])
    after = changed.layers[PREDICTION].particles
    assert set(changed.layers) == {PREDICTION}
    assert after.mask[-1].sum() == particles.mask[1].sum() - held.sum()
    image = changed.layers[PREDICTION].rgb, recording.layers[PREDICTION].rgb
    assert not np.array_equal(*image)


def test_a_camera_on_a_link_goes_on_in_what_was_edited(source, recording, monkeypatch):
    moved = np.array(recording.camera.camera_to_world)
    moved[:, :, 0, 3] += 0.05 * np.arange(len(moved), dtype=np.float32)[:, None]

    def carried(dataset, number, start, length, config):
        batch = read_window(dataset, number, start, length, config)
        camera = dataclasses.replace(batch.frames.camera, camera_to_world=moved[:length])
        return dataclasses.replace(batch, frames=dataclasses.replace(batch.frames, camera=camera))

    monkeypatch.setattr("hdvpd.viewing.runs.read_window", carried)
    particles, pose = recording.layers[PREDICTION].particles, np.eye(4)
    pose[:3, 3] = particles.positions[1][particles.mask[1]][0]
    edit = editing.Edit("remove", editing.Box(pose, np.full(3, 0.02)), pose)
    changed = source.load(0, [edit])
    np.testing.assert_array_equal(changed.camera.camera_to_world[2:], moved[2:])


def test_a_new_view_is_that_of_the_camera_itself(source, recording):
    camera = jax.tree.map(lambda x: np.asarray(x)[2, 0], recording.camera)
    height = recording.layers[PREDICTION].rgb.shape[2]
    fov = 2 * np.arctan(height / 2 / camera.intrinsics[1, 1])
    image = source.render(recording, 2, camera.camera_to_world, float(fov))
    known = recording.layers[PREDICTION].rgb[2, 0]
    assert image.shape == known.shape
    # The lens may differ by a shifted centre, the picture not by much.
    assert np.abs(image.astype(int) - known).mean() < 10


def test_a_new_checkpoint_is_taken(source, small_run, tmp_path, monkeypatch):
    copy = tmp_path / "run"
    shutil.copytree(small_run, copy)
    monkeypatch.setattr(source, "folder", copy)
    monkeypatch.setattr(source.world, "folder", copy)
    assert not source.refresh()
    (old,) = CheckpointStore(copy).steps()
    os.rename(copy / "checkpoints" / str(old), copy / "checkpoints" / "7")
    assert source.refresh()
    assert source.world.step == 7
    assert not source.refresh()


def test_a_damaged_checkpoint_is_tried_once(small_run, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(small_run, folder)
    checkpoints, tried = folder / "checkpoints", []

    def arrives(step, *, sound):
        shutil.copytree(checkpoints / "3", checkpoints / f".{step}")
        if not sound:
            (checkpoints / f".{step}" / "digest.json").unlink()
        (checkpoints / f".{step}").rename(checkpoints / str(step))

    arrives(5, sound=False)
    source = RunSource(folder, steps=STEPS)
    assert source.world.step == 3
    update = source.world.update
    monkeypatch.setattr(source.world, "update", lambda: tried.append(update()))
    assert not source.refresh()
    assert tried == []  # it was tried when the run was opened
    arrives(7, sound=False)
    assert [source.refresh() for _ in range(3)] == [False] * 3
    assert len(tried) == 1
    for step in ("5", "7"):  # as a training does that goes on before them
        (checkpoints / step).rename(checkpoints / f"{step}.aside")
    assert not source.refresh()
    arrives(7, sound=True)
    assert source.refresh()
    assert source.world.step == 7
    assert not source.refresh()
    assert len(tried) == 2


def test_before_the_first_checkpoint_there_is_truth_alone(small_run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_bytes((small_run / "config.toml").read_bytes())
    source = RunSource(tmp_path / "run", steps=STEPS)
    recording = source.load(0)
    assert set(recording.layers) == {TRUTH}
    with pytest.raises(UserError, match="wait for the first checkpoint"):
        source.render(recording, 0, np.eye(4, dtype=np.float32), 1.0)


def test_a_rollout_folder_is_opened(recording, rollout):
    from hdvpd.viewing.main import open_source

    opened = open_source(rollout)
    assert opened.titles == ("recorded", "wait")
    again = opened.load(0)
    # The same window as the run's own scene: the same pictures, truth and scores.
    for layer in (TRUTH, PREDICTION):
        np.testing.assert_array_equal(again.layers[layer].rgb, recording.layers[layer].rgb)
    np.testing.assert_array_equal(again.ssim, recording.ssim)
    assert again.bones == recording.bones
    particles = again.layers[PREDICTION].particles
    pose = np.eye(4)
    pose[:3, 3] = particles.positions[1][particles.mask[1]].mean(0)
    changed = opened.load(1, [editing.Edit("remove", editing.Box(pose, np.full(3, 0.3)), pose)])
    assert set(changed.layers) == {PREDICTION}
    (rollout / "rollout.json").write_text('{"plans": []}')
    with pytest.raises(UserError, match="Write the rollout again"):
        open_source(rollout)


def test_a_rollout_whose_model_is_gone_says_what_helps(small_run, rollout, tmp_path, monkeypatch):
    from hdvpd.viewing.main import open_source
    from hdvpd.world.loading import load

    monkeypatch.setattr("hdvpd.viewing.rollouts.load", load)
    folder, about = tmp_path / "run", json.loads((rollout / "rollout.json").read_text())

    def refused(**changes) -> str:
        (rollout / "rollout.json").write_text(json.dumps(about | changes))
        with pytest.raises(UserError, match="rite the rollout again with") as refusal:
            open_source(rollout)
        text = str(refusal.value)
        assert str(folder) in text
        assert "--step" not in text
        return text

    gone = refused(run=str(folder))
    assert (
        f"which is not there. If it was moved, write its new place as `run` into {rollout}" in gone
    )
    shutil.copytree(small_run, folder)
    assert "checkpoint 2 of" in refused(run=str(folder), checkpoint=2)
    (folder / "checkpoints" / "3" / "digest.json").write_text("{")
    assert "digest.json cannot be read" in refused(run=str(folder), checkpoint=3)


def test_every_plan_of_a_rollout_is_exported(rollout, tmp_path, monkeypatch, capsys):
    from hdvpd.viewing import main

    written = []
    monkeypatch.setattr("hdvpd.viewing.offline.write_page", lambda *words: written.append(words))
    monkeypatch.chdir(tmp_path)
    files = main.export(rollout, out=None, form="html")
    assert list(map(str, files)) == ["it-episode-0008-recorded.html", "it-episode-0008-wait.html"]
    assert [(recording.title, file) for recording, file in written] == [
        ("recorded", files[0]), ("wait", files[1]),
    ]  # fmt: skip
    assert "wrote it-episode-0008-wait.html: wait\n" in capsys.readouterr().out
    named = main.export(rollout, out=tmp_path / "v1.2.html", form="html")
    assert named == (tmp_path / "v1.2-recorded.html", tmp_path / "v1.2-wait.html")
    about = json.loads((rollout / "rollout.json").read_text())
    one = about | {"plans": about["plans"][1:]}
    (rollout / "rollout.json").write_text(json.dumps(one))
    (single,) = main.export(rollout, out=None, form="html")
    assert single.name == "it-episode-0008.html"
    assert written[-1][0].title == "wait"


def test_the_model_that_comes_with_hdvpd_is_opened_by_its_name(small_run, tmp_path, monkeypatch):
    from hdvpd.viewing.main import open_source

    (tmp_path / "pretrained").mkdir()
    packed.pack(small_run, tmp_path / "pretrained" / "reference.zip")
    monkeypatch.setattr(packed, "files", lambda _: tmp_path)
    monkeypatch.chdir(tmp_path)
    opened = open_source(Path("reference"), episode=9)
    assert isinstance(opened, RunSource)
    assert opened.folder == Path("runs/reference")
    assert opened.world.step == 3


def test_the_commands_of_the_page(synthetic_dataset, tmp_path, monkeypatch, capsys):
    needed("rerun")
    page = (Path(__file__).parent.parent / "docs" / "viewing.md").read_text()
    lines = re.findall(r"^hdvpd (.*)$", page, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    for words in map(shlex.split, lines):
        HDVPD.parse(words)
        if words[0] == "export":
            assert command([words[0], str(synthetic_dataset), *words[2:]]) == 0, capsys.readouterr()
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["synthetic-episode-0000.rrd", "synthetic-episode-0009.html"]
    assert len(lines) >= 4


def test_mistakes_are_one_message(tmp_path, small_run, capsys):
    def refused(*words: str) -> str:
        assert command(list(words)) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        return text

    assert "neither the folder of a run" in refused("view", str(tmp_path))
    assert "--episode" in refused("view", str(small_run), "--port", "0", "--actions", "a.npy")
    assert "should end in .rrd" in refused("export", str(small_run), "--out", "it.html")


@pytest.mark.parametrize("verb", ["view", "export"])
def test_flags_that_a_source_has_no_use_for_are_refused(
    verb, synthetic_dataset, small_run, rollout, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hdvpd.viewing.serving.serve", lambda *_: pytest.fail("it is shown"))
    before = sorted(tmp_path.iterdir())

    def refused(folder: Path, *words: str) -> str:
        port = ("--port", "0") if verb == "view" else ("--format", "html")
        assert command([verb, str(folder), *port, *words]) == 2
        assert sorted(tmp_path.iterdir()) == before
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        return text

    told = refused(synthetic_dataset, "--episode", "0", "--actions", "f.npy")
    assert f"--actions f.npy: {synthetic_dataset} is a data set" in told
    assert "--episode 0" not in told
    told = refused(synthetic_dataset, "--start", "2", "--steps", "3", "--step", "7")
    assert "--start 2, --steps 3, --step 7: " in told
    assert "no episode 99" in refused(synthetic_dataset, "--episode", "99")
    told = refused(rollout, "--actions", "f.npy", "--episode", "0")
    assert f"--episode 0, --actions f.npy: {rollout} holds plans" in told
    assert "--start 3 needs to know in which episode" in refused(small_run, "--start", "3")
    if verb == "view":
        assert "--split test: " in refused(synthetic_dataset, "--split", "test")
        assert "--actions a.npy b.npy: " in refused(rollout, "--actions", "a.npy", "b.npy")


def test_the_episode_of_a_data_set_is_the_one_that_is_shown(synthetic_dataset, monkeypatch):
    from hdvpd.viewing import main

    shown = []
    monkeypatch.setattr("hdvpd.viewing.serving.serve", lambda *words: shown.append(words) or 0)
    chosen = {"start": 0, "actions": (), "split": None, "steps": None, "checkpoint_step": None}
    for episode in (None, 7):
        assert (
            main.view(synthetic_dataset, host="localhost", port=0, episode=episode, **chosen) == 0
        )
    (whole, *_), (one, *_) = shown
    assert whole.episodes == tuple(range(10))
    assert one.episodes == (7,)
    assert one.titles == whole.titles[7:8]
    again, known = one.load(0), whole.load(7)
    np.testing.assert_array_equal(again.layers[TRUTH].rgb, known.layers[TRUTH].rgb)


def test_the_episode_that_is_named_is_exported(synthetic_dataset, source, tmp_path, monkeypatch):
    from hdvpd.viewing import main

    written = []
    monkeypatch.setattr("hdvpd.viewing.offline.write_page", lambda *words: written.append(words))
    monkeypatch.chdir(tmp_path)
    np.save("wait.npy", np.zeros((STEPS, 3), np.float32))
    main.export(synthetic_dataset, out=None, form="html", episode=0)
    main.export(synthetic_dataset, out=None, form="html", episode=9)
    actions = tmp_path / "wait.npy"
    main.export(source.folder, out=None, form="html", episode=9, actions=actions, steps=STEPS)
    names = [file.name for _, file in written]
    run = source.folder.name
    assert names == [
        "synthetic-episode-0000.html", "synthetic-episode-0009.html", f"{run}-episode-0009.html",
    ]  # fmt: skip
    assert [recording.title.partition(",")[0] for recording, _ in written] == [
        "episode 0", "episode 9", "episode 9 from frame 0",
    ]  # fmt: skip
    assert written[-1][0].title.endswith("wait.npy")


def tell_process(process, number):
    process.send_signal(number)


def tell_other_thread(process, number):
    """Send a signal that is received while the main thread waits, and does not wake it."""
    threads = map(int, os.listdir(f"/proc/{process.pid}/task"))
    other = max(thread for thread in threads if thread != process.pid)
    assert ctypes.CDLL(None).tgkill(process.pid, other, number) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "tell",
    [
        tell_process,
        pytest.param(
            tell_other_thread, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux")
        ),
    ],
)
def test_the_verb_serves_until_it_is_told_to_stop(tell, number, synthetic_dataset, tmp_path):
    words = [sys.executable, "-m", "hdvpd", "view", str(synthetic_dataset), "--port", "0"]
    running = subprocess.Popen(
        words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines = []
    for line in running.stdout:  # type: ignore[union-attr]
        lines.append(line)
        if "Ctrl-C" in line:
            break
    tell(running, number)
    try:
        rest, complaints = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 128 + number
    assert "Traceback" not in complaints
    assert f"showing {synthetic_dataset} at http://localhost:" in "".join(lines)
    assert rest == "stopped\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_signals_end_the_program_while_the_first_scene_is_loaded(number, status, synthetic_dataset):
    needed("viser")
    program = f"""if True:
        import signal, sys
        from hdvpd.__main__ import main
        from hdvpd.viewing.sources import DatasetSource

        load = DatasetSource.load

        def interrupted(*words):
            signal.raise_signal({int(number)})
            return load(*words)

        DatasetSource.load = interrupted
        signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs tests may ignore it
        sys.exit(main(["view", {str(synthetic_dataset)!r}, "--port", "0"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert "Ctrl-C stops it" not in done.stdout
