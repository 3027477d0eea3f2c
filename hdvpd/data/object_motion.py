"""In which windows an object moves: by the truth where a data set has it, else by the images.

Without truth, a window counts if enough pixels change their colour between two consecutive frames
from the last observed one on, and show a place away from the robot both before and after: pushed
objects, but strong shadows too.
"""

import numpy as np

from hdvpd.basics.geometry import unproject
from hdvpd.basics.types import Batch, Bool, Float
from hdvpd.config import DataConfig
from hdvpd.data.store import Dataset
from hdvpd.data.truth import MOVED_M, Objects, read_objects
from hdvpd.data.windows import OBSERVED_FRAMES, WindowIndex, read_window

AWAY_FROM_ROBOT_M = 0.12
"""From every kinematic point; a link's surface is up to 9 cm from the points on its axis."""
CHANGED = 0.1
"""A pixel changes if a channel does by more than this."""
CHANGED_SHARE = 5e-4
"""Of the pixels of all views: 12 of two images of 96x128, a small cube's face and its old place."""


def moving_windows(dataset: Dataset, index: WindowIndex, data_config: DataConfig) -> list[int]:
    """List the windows in which an object moves after the last observed frame.

    Args:
      dataset: to read from; without truth, every frame of the split is read.
      index: windows of a split.
      data_config: cameras and image size.

    Returns:
      Numbers of windows in `index`, ascending.
    """
    moving: list[int] = []
    number = 0
    for episode in index.episodes:
        objects = read_objects(dataset, episode.number)
        changes = np.zeros(episode.length - 1, bool)
        if objects is None:
            batch = read_window(dataset, episode.number, 0, episode.length, data_config)
            changes = changed_away_from_robot(batch) >= CHANGED_SHARE
        for start in range(episode.length - index.length + 1):
            last, end = start + OBSERVED_FRAMES - 1, start + index.length
            if objects is not None:
                moves = objects_move(objects, last, end)
            else:
                moves = bool(changes[last : end - 1].any())
            moving += [number] * moves
            number += 1
    return moving


def objects_move(objects: Objects, last: int, end: int) -> bool:
    """Say whether an object is `MOVED_M` from its place at frame `last` in a frame before `end`."""
    return bool((objects.displacements(last)[last:end] >= MOVED_M).any())


def changed_away_from_robot(batch: Batch) -> Float[np.ndarray, "pairs"]:
    """Return the share of pixels that change between consecutive frames, away from the robot.

    Returns:
      The share between every frame and the next.
    """
    frames, robot = batch.frames, np.asarray(batch.robot.positions)
    points = np.asarray(unproject(frames.depth_m, frames.camera))
    known = np.asarray(frames.depth_m) > 0
    away = np.stack([_away(p, k, r) for p, k, r in zip(points, known, robot, strict=True)])
    colors = np.asarray(frames.rgb, np.float32) / 255.0
    changed = (np.abs(colors[1:] - colors[:-1]) > CHANGED).any(axis=-1)
    return (changed & away[1:] & away[:-1]).mean(axis=(1, 2, 3))


def _away(
    points: Float[np.ndarray, "v h w 3"],
    known: Bool[np.ndarray, "v h w"],
    robot: Float[np.ndarray, "p 3"],
) -> Bool[np.ndarray, "v h w"]:
    near = np.zeros(known.shape, bool)
    for point in robot:
        near |= ((points - point) ** 2).sum(axis=-1) < AWAY_FROM_ROBOT_M**2
    return known & ~near
