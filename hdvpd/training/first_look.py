"""Whether the model is shown anything at all: a training on nothing would end well, with loss 0.

A workspace in other units, a wrong frame or a wrong depth unit leave no particle in any image, and
every target is white then.
"""

from collections.abc import Iterator

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Batch, Float, RgbdFrames
from hdvpd.config import Config, SceneSpec
from hdvpd.data.pinhole import pixel_directions
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex, read_window
from hdvpd.training.processes import Team

_OTHERS = 8
"""Windows all over the data that are looked at, too: a small batch may well be empty by itself."""


def require_something(
    batch: Batch,
    dataset: Dataset,
    windows: WindowIndex,
    scene: SceneSpec,
    config: Config,
    team: Team,
) -> None:
    """Refuse data of which nothing lies in the workspace.

    Args:
      batch: this process's windows of the first batch.
      dataset: they are of.
      windows: all training windows; a few are read if nothing is in those of the batch.
      scene: has the workspace.
      config: of the run.
      team: asks together, since one process's windows may be empty.

    Raises:
      UserError: no pixel of any window that was looked at becomes a particle.
    """
    far = config.render.far
    if team.any(any(_visible_counts(batch.frames, scene, far))):
        return
    seen: list[Float[np.ndarray, "n 3"]] = []
    for number in np.unique(np.linspace(0, len(windows) - 1, _OTHERS).astype(int)):
        other = read_window(dataset, *windows[int(number)], windows.length, config.data).frames
        # Every process reads the same ones, so all come to the same end.
        if any(_visible_counts(other, scene, far)):
            return
        seen += [points for points, _ in _images(other)]
    low, high = scene.workspace_min, scene.workspace_max
    raise UserError(
        f"{dataset.title}: not one pixel of the first batch's windows, nor of up to {_OTHERS} "
        f"others, lies in the workspace {_listed(low)} to {_listed(high)} m within render.far = "
        f"{far:g} m of its camera, so there is nothing to learn. {_where(seen)} Correct whichever "
        "is wrong: the workspace (metres, world frame; --data.workspace-min and "
        "--data.workspace-max), the camera poses or the depth unit; `hdvpd data check` on the data "
        "set tells. Then start this run again with --resume auto."
    )


def _where(seen: list[np.ndarray]) -> str:
    points = np.concatenate([np.zeros((0, 3)), *seen])
    if not len(points):
        return "No pixel has valid depth."
    low, high = np.percentile(points, [1, 99], axis=0)
    return f"What is seen lies within {_listed(low)} to {_listed(high)} m."


def _listed(corner: np.ndarray | tuple[float, ...]) -> str:
    return f"({', '.join(f'{float(value):.3g}' for value in corner)})"


def _visible_counts(frames: RgbdFrames, scene: SceneSpec, far: float) -> Iterator[int]:
    """Yield for every image how many of its pixels become particles, as the encoder decides."""
    low, high = np.array(scene.workspace_min), np.array(scene.workspace_max)
    for points, away in _images(frames):
        inside = ((points >= low) & (points <= high)).all(axis=1) & (away <= far)
        yield int(inside.sum())


def _images(frames: RgbdFrames) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for every image the world points [m] of its valid pixels, and their distances [m].

    One by one, and only as many as are asked for: usually the first image answers.
    """
    depths = np.asarray(frames.depth_m)
    size = depths.shape[-2:]
    matrices = np.asarray(frames.camera.intrinsics, np.float64).reshape(-1, 3, 3)
    poses = np.asarray(frames.camera.camera_to_world, np.float64).reshape(-1, 4, 4)
    for depth_m, matrix, pose in zip(depths.reshape(-1, *size), matrices, poses, strict=True):
        valid = np.isfinite(depth_m) & (depth_m > 0)
        rays = (pixel_directions(matrix, size) * np.where(valid, depth_m, 0)[..., None])[valid]
        yield rays @ pose[:3, :3].T + pose[:3, 3], np.linalg.norm(rays, axis=1)
