"""Shapes and true motion of objects, against closed forms and the analytic scene."""

import json
from pathlib import Path

import numpy as np
import pytest
from data_tools import edit_json, replace_array
from scipy.spatial.transform import Rotation

from hdvpd.basics.errors import UserError
from hdvpd.basics.geometry import unproject
from hdvpd.config import DataConfig
from hdvpd.data.arrays import OBJECTS
from hdvpd.data.calibration.recording import read_snapshot
from hdvpd.data.shapes import Shape, parse_shape
from hdvpd.data.simulation import synthetic
from hdvpd.data.store import Dataset
from hdvpd.data.truth import Objects, has_objects, read_objects
from hdvpd.data.windows import read_window


@pytest.mark.parametrize(
    ("shape", "point", "distance"),
    [
        (Shape("sphere", (0.5,)), (3.0, 4.0, 0.0), 4.5),
        (Shape("sphere", (0.5,)), (0.0, 0.1, 0.0), -0.4),
        (Shape("box", (1.0, 2.0, 3.0)), (1.5, 0.0, 0.0), 0.5),
        (Shape("box", (1.0, 2.0, 3.0)), (4.0, 6.0, 3.0), 5.0),
        (Shape("box", (1.0, 2.0, 3.0)), (0.25, 0.0, 0.0), -0.75),
        (Shape("cylinder", (1.0, 2.0)), (0.0, -4.0, 6.0), 5.0),
        (Shape("cylinder", (1.0, 2.0)), (0.5, 0.0, 1.75), -0.25),
    ],
)
def test_signed_distances(shape, point, distance):
    np.testing.assert_allclose(
        shape.distance(np.array([[point] * 3] * 2)), np.full((2, 3), distance)
    )


def test_displacement_of_a_translation_and_of_a_half_turn():
    poses = np.tile(np.eye(4), (3, 1, 1))
    poses[1, :3, 3] = (0.3, 0.0, 0.4)
    poses[2, :3, :3] = np.diag([-1.0, -1.0, 1.0])
    moved = Shape("cylinder", (3.0, 7.0)).displacement(poses)
    np.testing.assert_allclose(moved, [0.0, 0.5, 2 * np.hypot(3.0, 3.0)])


@pytest.mark.parametrize(
    "raw",
    [{"box": [1, 2]}, {"ball": [1]}, [1], {"sphere": [0]}, {"sphere": "1"}, {"sphere": [np.inf]}],
)
def test_impossible_shapes_are_refused(raw):
    with pytest.raises(UserError, match=r"episode\.json: objects\.shape"):
        parse_shape(raw, Path("episode.json"))


def test_shapes_are_read_as_they_were_written():
    shape = Shape("cylinder", (0.03, 0.06))
    assert parse_shape(json.loads(json.dumps(shape.describe())), Path("x")) == shape
    assert parse_shape(None, Path("x")) is None


def test_points_go_along_with_their_own_object():
    rng = np.random.default_rng(0)
    poses = np.tile(np.eye(4), (3, 2, 1, 1))
    poses[..., :3, :3] = Rotation.random(6, random_state=1).as_matrix().reshape(3, 2, 3, 3)
    poses[..., :3, 3] = rng.uniform(-1, 1, (3, 2, 3)) + np.array([[[-5.0, 0, 0], [5.0, 0, 0]]])
    objects = Objects(("a", "b"), (Shape("box", (0.1, 0.2, 0.3)), Shape("sphere", (0.2,))), poses)
    local = {0: rng.uniform(-1, 1, (5, 3)) * [[0.1, 0.2, 0.3]], 1: rng.uniform(-0.1, 0.1, (4, 3))}
    at = {k: np.einsum("fij,nj->fni", poses[:, k, :3, :3], local[k]) + poses[:, k, None, :3, 3]
          for k in local}  # fmt: skip
    points = np.concatenate([at[0][1], at[1][1], [[0.0, 0.0, 9.0]]])
    owners = objects.owners(1, points)
    np.testing.assert_array_equal(owners, [0] * 5 + [1] * 4 + [-1])
    places = objects.move(points, owners, 1)
    np.testing.assert_allclose(places[:, :5], at[0], atol=1e-12)
    np.testing.assert_allclose(places[:, 5:9], at[1], atol=1e-12)
    np.testing.assert_allclose(places[:, 9], np.tile(points[9], (3, 1)))
    np.testing.assert_allclose(objects.displacements(1)[1], 0.0)
    assert (objects.displacements(1)[0] > 0.0).all()


def test_pixels_of_the_analytic_scene_belong_to_the_sphere_that_they_show(synthetic_dataset):
    dataset = Dataset(synthetic_dataset)
    objects = read_objects(dataset, 9)
    frames = read_window(dataset, 9, 0, 2, DataConfig(height=32, width=40)).frames
    owners = objects.owners(1, np.asarray(unproject(frames.depth_m, frames.camera))[1])
    colors = frames.rgb[1]
    reddish = (colors[..., 0] > 2.0 * colors[..., 1]) & (colors[..., 0] > 2.0 * colors[..., 2])
    assert reddish.sum() > 5
    np.testing.assert_array_equal(owners[reddish], 0)
    # The ball is the tool's: where it goes, its points go.
    tool = dataset.read(9, "robot/link_to_world")[:, -1, :3, 3]
    motion = objects.displacements(0)
    np.testing.assert_allclose(motion[:, 0], np.linalg.norm(tool - tool[:1], axis=1), atol=1e-6)
    np.testing.assert_array_equal(motion[:, 1:], 0.0)


def test_without_shapes_nothing_is_known_and_wrong_poses_are_named(tmp_path):
    synthetic.write_synthetic_dataset(tmp_path, episodes=1, steps=2, height=12, width=16, seed=0)
    file = tmp_path / "episodes" / "000000" / "episode.json"
    listed = json.loads(file.read_text())["objects"]
    edit_json(file, objects=listed[:1])
    with pytest.raises(UserError, match=r"truth/object_to_world.* of its 1 objects"):
        read_objects(Dataset(tmp_path), 0)
    edit_json(file, objects=[*listed[:3], {"name": "sphere2"}])
    assert not has_objects(Dataset(tmp_path), 0)
    assert read_objects(Dataset(tmp_path), 0) is None


@pytest.mark.parametrize(
    ("change", "frames"), [(lambda p: np.concatenate([p[:1], p[:1], p]), 5), (lambda p: p[:-1], 2)]
)
def test_poses_of_another_number_of_frames_are_refused(tmp_path, change, frames):
    """Two frames more in front once shifted all truth, and nothing was said."""
    synthetic.write_synthetic_dataset(tmp_path, episodes=1, steps=2, height=12, width=16, seed=0)
    replace_array(tmp_path, 0, OBJECTS, change(Dataset(tmp_path).read(0, OBJECTS)))
    dataset = Dataset(tmp_path)
    words = rf"truth/object_to_world: .*episode 0 .* {frames} frames, .*length = 3.*write"
    for start, length in ((None, None), (0, 1), (2, 1)):
        with pytest.raises(UserError, match=words):
            read_objects(dataset, 0, start, length)
    with pytest.raises(UserError, match=words):
        read_snapshot(dataset, dataset.episodes[0], 1)
