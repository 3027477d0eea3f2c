"""Recordings without a browser: colours, edits, what is written for rerun, what is refused."""

import dataclasses
import json
import re
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
from extras import needed
from recordings import BLUE, OBSERVED, TIMES, MadeUp, make_recording

from hdvpd.basics.errors import UserError
from hdvpd.data.kinematics import Skeleton
from hdvpd.viewing import colors, editing
from hdvpd.viewing.recording import PREDICTION, TRUTH, bones


def test_bones_follow_the_segments():
    skeleton = Skeleton(points=(4, 7), segments=((7, 4), (4, 5)), grippers=(), gripper_units=())
    chain = [(1, 2), (2, 3), (3, 4), (4, 5), (5, 0)]
    beyond = [(0, 6), (6, 7), (7, 8), (8, 9)]  # link 5 is no point
    assert list(bones(skeleton)) == chain + beyond


def test_displacements_of_tracked_and_of_new_points():
    recording = make_recording()
    origin = recording.last_observed
    moved = colors.displacements(recording.layers[PREDICTION].particles, origin)
    mask = recording.layers[PREDICTION].particles.mask
    steps = np.maximum(np.arange(TIMES) - OBSERVED + 1, 0)
    expected = np.where(mask, 0.12 * steps[:, None], 0)
    np.testing.assert_allclose(moved, expected, atol=1e-6)
    # Points without identity: to the nearest, which after a cube's edge is a face away at least.
    seen = colors.displacements(recording.layers[TRUTH].particles, origin)
    assert (seen <= expected.max() + 1e-6).all()
    assert seen[-1].max() > 0.3
    assert (seen[:OBSERVED] == 0).all()


def test_errors_are_distances_to_the_nearest_seen_point():
    recording = make_recording()
    predicted = recording.layers[PREDICTION].particles
    truth = recording.layers[TRUTH].particles
    found = colors.errors(predicted, truth)
    for time in (1, 4):
        real, seen = predicted.mask[time], truth.mask[time]
        pairs = predicted.positions[time][real][:, None] - truth.positions[time][seen][None]
        nearest = np.linalg.norm(pairs, axis=-1).min(1)
        np.testing.assert_allclose(found[time][real], nearest, atol=1e-6)
    assert (found[:, ~predicted.mask[0]] == 0).all()


def test_components_show_the_directions_of_most_variance():
    rng = np.random.default_rng(1)
    scores = rng.uniform(-1, 1, size=(2, 400, 3)) * [5.0, 2.0, 1.0]
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0][:3]
    features = (scores @ turn + 3.0).astype(np.float32)
    shown = colors.components(features, np.ones((2, 400), bool)).astype(float)
    for channel in range(3):
        correlation = np.corrcoef(scores[..., channel].ravel(), shown[..., channel].ravel())[0, 1]
        assert abs(correlation) > 0.98
    flat = colors.components(np.ones((1, 5, 4), np.float32), np.ones((1, 5), bool))
    assert (flat == 128).all()


def test_every_coloring_gives_colours_of_every_time():
    recording = make_recording()
    for layer in recording.layers:
        for name in colors.COLORINGS:
            shown = colors.colored(recording, layer, name)
            assert shown.shape == recording.layers[layer].particles.positions.shape
            assert shown.dtype == np.uint8
    by_age = colors.colored(recording, PREDICTION, "age")
    assert len({tuple(by_age[t, 0]) for t in range(TIMES)}) == TIMES - 1  # two were observed


def test_edits_take_the_rows_they_need():
    positions = np.array([[0, 0, 0], [1, 0, 0], [2, 0, 0], [9, 9, 9]], np.float32)
    mask = np.array([True, True, True, False])
    turned = np.eye(4)
    turned[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]  # a quarter about z
    box = editing.Box(turned, np.array([0.5, 2.0, 0.5]))  # reaches to 1 along the world's x
    to = np.eye(4)
    to[:3, :3], to[:3, 3] = turned[:3, :3], [0, 0, 3]

    def edited(action):
        return editing.edit_rows(positions, mask, editing.Edit(action, box, to))

    left, there, _ = edited("remove")
    assert there.tolist() == [False, False, True, False]
    moved, there, _ = edited("move")
    np.testing.assert_allclose(moved[:3], [[0, 0, 3], [1, 0, 3], [2, 0, 0]], atol=1e-6)
    copied, there, origin = edited("copy")
    assert there.sum() == 5
    assert len(copied) == 4 + editing.SLOTS  # the padding takes one, the other needs room
    np.testing.assert_allclose(copied[origin == 1][there[origin == 1]], [[1, 0, 0], [1, 0, 3]])
    assert left[0].tolist() == [0, 0, 0]


def test_edited_particles_keep_what_belongs_to_them():
    recording = make_recording()
    particles = recording.layers[PREDICTION].particles
    pose, to = np.eye(4), np.eye(4)
    pose[:3, 3], to[:3, 3] = [0, 0, 0.3], [0.3, 0, 0.3]
    edit = editing.Edit("copy", editing.Box(pose, np.full(3, 0.3)), to)
    twice = editing.edit_particles(particles, edit)
    assert twice.mask[0].sum() == 2 * particles.mask[0].sum()
    new = twice.mask[0] & (twice.positions[0, :, 0] > 0.15)
    assert (twice.colors[0][new] == BLUE).all()
    old = particles.features[0][particles.mask[0]]
    np.testing.assert_array_equal(twice.features[0][new], old)


class Seen(MadeUp):
    """What only cameras saw: the cube leaves to the left, all of it observed."""

    def load(self, index, edits=()):
        recording = make_recording(self.titles[index])
        layers = {TRUTH: recording.layers[TRUTH]}
        return dataclasses.replace(recording, layers=layers, num_observed=TIMES, ssim=None)


def test_the_box_holds_what_is_seen_at_the_shown_time():
    needed("viser")
    from hdvpd.viewing.serving import served

    pose = np.eye(4)
    pose[:3, 3] = [0, 0, 0.3]
    box = editing.Box(pose, np.full(3, 0.2))
    with served(Seen(), "localhost", 0) as page:
        for time, held in ((0, True), (TIMES - 1, False), (1, True)):
            page.time.value = time
            page.editor.select(box)
            marked = page.editor.marked(TRUTH, time)
            assert (marked is not None and marked.sum() == 507) == held
    with served(MadeUp(), "localhost", 0) as page:  # a prediction starts from what was seen last
        page.time.value = TIMES - 1
        page.editor.select(box)
        assert page.editor.marked(PREDICTION, TIMES - 1).sum() == 507


def test_a_port_in_use_is_one_message():
    needed("viser")
    from hdvpd.viewing.serving import require_free

    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"localhost:{port} cannot be served.*--port"):
            require_free("localhost", port)
    require_free("localhost", 0)
    with pytest.raises(UserError, match="--port"):
        require_free("localhost", 70000)


def rerun_command(*words) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rerun", *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_reruns_own_reader_opens_what_is_written(tmp_path):
    needed("rerun")
    from hdvpd.viewing.rerun_file import write_rerun

    odd = "wrist <b>/1"
    recording = make_recording(cameras=("left", odd))
    file = tmp_path / "folder" / "it.rrd"
    write_rerun(recording, file)
    assert [path.name for path in file.parent.iterdir()] == ["it.rrd"]
    rerun_command("rrd", "verify", file)
    text = rerun_command("rrd", "print", "-vv", file)
    entities = (
        *("/world/truth", "/world/prediction", "/world/robot/points", "/world/robot/bones"),
        *("/world/cameras/left/truth/rgb", "/world/cameras/left/prediction/rgb"),
        *("/depth/left/prediction", "/ssim/left"),
    )
    for entity in entities:
        assert entity in text, entity
    chunks = [chunk for chunk in text.split("\n\n") if "/world/truth" in chunk]
    assert len(chunks) >= 1
    for chunk in chunks:  # one timeline
        assert re.findall(r"index_name: (\w+)", chunk) == ["step"]


def test_reruns_file_is_whole_or_not_there(tmp_path):
    needed("rerun")
    from hdvpd.viewing.rerun_file import write_rerun

    recording = make_recording()
    broken = dataclasses.replace(recording, bones=((0, 99),))
    with pytest.raises(IndexError):
        write_rerun(broken, tmp_path / "it.rrd")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Could not write"):
        write_rerun(recording, tmp_path / "file" / "it.rrd")


@pytest.mark.parametrize("free", [0, 20_000, 122_880])
def test_a_disk_that_is_too_full_for_rerun_is_one_message(free, small_disk):
    needed("rerun")
    from hdvpd.viewing.rerun_file import write_rerun

    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - free))
    # Of rerun's own writer, nothing was said where the beginning of the file had found room.
    with pytest.raises(UserError, match=r"it\.rrd: No space left on device\. .*export again"):
        write_rerun(make_recording(), small_disk / "it.rrd")
    assert list(small_disk.iterdir()) == [filler]


def test_a_page_that_cannot_be_written_is_one_message(tmp_path):
    needed("viser")
    from hdvpd.viewing.offline import write_page

    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"Could not write .*it\.html: .*export again"):
            write_page(make_recording(), folder / "it.html")


def test_frames_that_are_left_out_take_their_time(monkeypatch):
    needed("viser")
    from viser.infra import StateSerializer

    from hdvpd.viewing.offline import render_page
    from hdvpd.viewing.serving import served

    source, pauses = Seen(), []
    every_third = dataclasses.replace(source.load(0), stride=3)
    assert every_third.describe(2) == "frame 6 (+3.0 s)"  # two frames per second
    monkeypatch.setattr(StateSerializer, "insert_sleep", lambda _, pause: pauses.append(pause))
    render_page(every_third, frames_per_second=4.0)
    assert pauses == [0.75] * TIMES
    with served(source, "localhost", 0) as page:
        usual = page.pause_s
        page.take(every_third)
        assert page.pause_s == 3 * usual


def test_reruns_timeline_counts_frames_and_predicted_steps():
    needed("rerun")
    from hdvpd.viewing.rerun_file import step_of

    assert [step_of(make_recording(), time) for time in range(TIMES)] == [-2, -1, 0, 1, 2]
    every_third = dataclasses.replace(Seen().load(0), stride=3)
    assert [step_of(every_third, time) for time in range(TIMES)] == [0, 3, 6, 9, 12]


def test_losses_of_a_run_that_is_written(tmp_path):
    needed("viser")
    from hdvpd.viewing.progress import filled, read_losses

    file = tmp_path / "metrics.jsonl"
    assert all(len(column) == 0 for column in read_losses(file))
    records = [
        {"kind": "run"},
        {"kind": "train", "step": 10, "loss": 0.5},
        {"kind": "validation", "step": 10, "loss": 0.6},
        {"kind": "train", "step": 20, "loss": None},
        {"kind": "train", "step": 30, "loss": 0.25},
    ]
    lines = "\n".join(map(json.dumps, records))
    file.write_text(lines + '\n{"kind": "train", "st')
    steps, train, validation = read_losses(file)
    np.testing.assert_array_equal(steps, [10, 30])
    np.testing.assert_array_equal(train, [0.5, 0.25])
    np.testing.assert_array_equal(validation, [0.6, np.nan])
    np.testing.assert_array_equal(filled(validation), [0.6, 0.6])
    np.testing.assert_array_equal(filled(np.array([np.nan, 1, np.nan, 2])), [1, 1, 1, 2])
