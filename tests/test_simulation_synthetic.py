from pathlib import Path

import numpy as np
import pytest

from hdvpd.basics.errors import UserError
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset

HEIGHT, WIDTH = 48, 64


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("synthetic") / "scene"
    return write_synthetic_dataset(path, episodes=3, steps=5, height=HEIGHT, width=WIDTH, seed=4)


def unproject(dataset: Dataset, episode: int, camera: str) -> tuple[np.ndarray, np.ndarray]:
    """World points of every pixel in float64, and which of them are valid."""
    depth = dataset.read(episode, f"cameras/{camera}/depth").astype(np.float64)
    matrix = dataset.read(episode, f"cameras/{camera}/intrinsics")
    pose = dataset.read(episode, f"cameras/{camera}/camera_to_world")
    points = np.zeros((*depth.shape, 3))
    for i in range(HEIGHT):
        for j in range(WIDTH):
            ray = np.linalg.inv(matrix) @ [j + 0.5, i + 0.5, 1.0]
            points[:, i, j] = (depth[:, i, j, None] * ray) @ pose[:3, :3].T + pose[:3, 3]
    return points, depth > 0


def surfaces(dataset: Dataset, episode: int) -> list[tuple[np.ndarray, float]]:
    """Centres over time and radius of every sphere, from the stored poses."""
    links = dataset.read(episode, "robot/link_to_world")[..., :3, 3].astype(np.float64)
    objects = dataset.read(episode, "truth/object_to_world")[..., :3, 3].astype(np.float64)
    grey = [links[:, 0], links[:, 1], links[:, 2]]
    grey += [(links[:, 0] + links[:, 1]) / 2, (links[:, 1] + links[:, 2]) / 2]
    # A resting sphere touches the table, so its radius is the height of its centre.
    resting = [(objects[:, k], float(objects[0, k, 2])) for k in range(1, 4)]
    return [(center, 0.035) for center in grey] + [(objects[:, 0], 0.05), *resting]


@pytest.mark.parametrize("camera", ["cam0", "cam1"])
def test_every_valid_pixel_lies_on_the_table_or_on_a_sphere(dataset, camera):
    points, valid = unproject(dataset, 1, camera)
    distances = [np.abs(points[..., 2])]
    for center, radius in surfaces(dataset, 1):
        offset = points - center[:, None, None]
        distances.append(np.abs(np.linalg.norm(offset, axis=-1) - radius))
    nearest = np.min(distances, axis=0)
    assert valid.any(axis=(1, 2)).all()
    assert not valid.all()
    assert nearest[valid].max() < 2e-6
    # Nothing is seen through anything: no point lies inside a sphere.
    for center, radius in surfaces(dataset, 1):
        inside = np.linalg.norm(points - center[:, None, None], axis=-1) < radius - 2e-6
        assert not (inside & valid).any()


def test_both_cameras_see_the_same_scene(dataset):
    points, valid = unproject(dataset, 0, "cam0")
    pose = dataset.read(0, "cameras/cam1/camera_to_world")
    matrix = dataset.read(0, "cameras/cam1/intrinsics")
    depth = dataset.read(0, "cameras/cam1/depth").astype(np.float64)
    local = (points[valid] - pose[:3, 3]) @ pose[:3, :3]
    pixel = local @ matrix.T
    column, row = (np.floor(pixel[:, k] / pixel[:, 2]).astype(int) for k in (0, 1))
    frame = np.nonzero(valid)[0]
    seen = (row >= 1) & (row < HEIGHT - 1) & (column >= 1) & (column < WIDTH - 1)
    row, column, frame, z = row[seen], column[seen], frame[seen], local[seen, 2]
    assert len(z) > 1000
    patch = [depth[frame, row + i, column + j] for i in (-1, 0, 1) for j in (-1, 0, 1)]
    surface = np.min(np.where(np.array(patch) > 0, patch, np.inf), axis=0)
    assert (z - surface).min() > -0.02


def test_measured_joints_reach_every_target_and_links_follow_them(dataset):
    joints = dataset.read(2, "robot/joint_positions")
    np.testing.assert_array_equal(joints[1:], dataset.read(2, "robot/joint_targets")[:-1])
    links = dataset.read(2, "robot/link_to_world")
    np.testing.assert_array_equal(links[1:], dataset.read(2, "robot/target_link_to_world")[:-1])
    shoulder, elbow = joints[:, 0].astype(np.float64), joints[:, 1].astype(np.float64)
    x = -0.3 + 0.22 * np.cos(shoulder) + 0.22 * np.cos(shoulder + elbow)
    y = 0.22 * np.sin(shoulder) + 0.22 * np.sin(shoulder + elbow)
    np.testing.assert_allclose(links[:, 2, 0, 3], x, atol=1e-6)
    np.testing.assert_allclose(links[:, 2, 1, 3], y, atol=1e-6)
    ball = dataset.read(2, "truth/object_to_world")[:, 0, :3, 3]
    np.testing.assert_allclose(ball, links[:, 2, :3, 3] - np.array([[0, 0, 0.1]]), atol=1e-6)
    assert np.linalg.norm(np.diff(ball, axis=0), axis=1).min() > 0.005


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path):
    def content(name: str, seed: int) -> dict[str, bytes]:
        path = tmp_path / name
        write_synthetic_dataset(path, episodes=2, steps=2, height=12, width=16, seed=seed)
        files = (f for f in path.rglob("*") if f.is_file())
        return {str(f.relative_to(path)): f.read_bytes() for f in files}

    first = content("a", 0)
    assert content("b", 0) == first
    other = content("c", 1)
    assert other.keys() == first.keys()
    assert (
        other["episodes/000000/cameras/cam0/rgb/c.0.0.0.0"]
        != (first["episodes/000000/cameras/cam0/rgb/c.0.0.0.0"])
    )


def test_a_folder_in_use_is_left_alone(tmp_path: Path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(UserError, match="not empty"):
        write_synthetic_dataset(tmp_path, episodes=1, steps=1, height=12, width=16, seed=0)
    assert [f.name for f in tmp_path.iterdir()] == ["mine"]
