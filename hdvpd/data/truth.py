"""Where the objects of an episode truly are, and which points belong to them.

Privileged truth, where a data set has it (`truth/object_to_world` and the objects' shapes). It
judges predictions and chooses training windows; no model reads it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float, Int
from hdvpd.data.arrays import OBJECTS
from hdvpd.data.schema import ObjectInfo
from hdvpd.data.shapes import Shape
from hdvpd.data.store import Dataset
from hdvpd.data.writer import episode_folder

ON_SURFACE_M = 0.003
"""A point this near to an object is on it: depth of simulated images is exact, and labels and bands
of other colours stand out by up to 1 mm."""
MOVED_M = 0.01
"""An object moves in a window if its corners go this far, in the mean, from where it was last
observed: settling and trembling stay below it."""


@dataclass(frozen=True)
class Objects:
    """The objects of an episode, during some of its frames.

    Attributes:
      names: of the objects.
      shapes: theirs.
      object_to_world: poses [m].
    """

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    object_to_world: Float[np.ndarray, "f o 4 4"]

    def owners(
        self, frame: int, points: Float[np.ndarray, "*batch 3"]
    ) -> Int[np.ndarray, "*batch"]:
        """Say on which object every point lies.

        Returns:
          Number of the nearest object within `ON_SURFACE_M`, or -1.
        """
        distances = [
            shape.distance((points - pose[:3, 3]) @ pose[:3, :3])
            for shape, pose in zip(self.shapes, self._poses(frame), strict=True)
        ]
        nearest = np.argmin(distances, axis=0)
        return np.where(np.min(distances, axis=0) <= ON_SURFACE_M, nearest, -1)

    def move(
        self,
        points: Float[np.ndarray, "n 3"],
        owners: Int[np.ndarray, "n"],
        frame: int,
    ) -> Float[np.ndarray, "f n 3"]:
        """Move points along with their objects.

        Args:
          points: at `frame` [m].
          owners: numbers of their objects; points of none (-1) stay.
          frame: when the points are where they are.

        Returns:
          Where they are at every frame [m].
        """
        places = np.repeat(points[None].astype(np.float64), len(self.object_to_world), axis=0)
        for number, pose in enumerate(self._poses(frame)):
            own = owners == number
            local = (points[own] - pose[:3, 3]) @ pose[:3, :3]
            turned = np.einsum("fij,nj->fni", self.object_to_world[:, number, :3, :3], local)
            places[:, own] = turned + self.object_to_world[:, number, None, :3, 3]
        return places

    def displacements(self, frame: int) -> Float[np.ndarray, "f o"]:
        """Return how far every object is from where it is at `frame` (`Shape.displacement`) [m]."""
        motions = []
        for number, shape in enumerate(self.shapes):
            poses = self.object_to_world[:, number]
            motions.append(
                shape.displacement(np.concatenate([poses[frame : frame + 1], poses]))[1:]
            )
        return np.stack(motions, axis=1)

    def _poses(self, frame: int) -> Float[np.ndarray, "o 4 4"]:
        return self.object_to_world[frame]


def has_objects(dataset: Dataset, episode: int) -> bool:
    """Say whether poses and shapes of an episode's objects are known."""
    listed = dataset.objects(dataset.episode(episode))
    known = bool(listed) and all(entry.shape is not None for entry in listed)
    return known and dataset.has_array(episode, OBJECTS)


def require_frames(dataset: Dataset, episode: int) -> None:
    """Refuse object poses that are not as many as the episode's frames: some would be another's.

    Raises:
      UserError: they are more or fewer, or cannot be opened.
    """
    dataset, episode = dataset.source_of(episode)
    length = dataset.episode(episode).length
    stored = tuple(dataset.open_array(episode, OBJECTS).shape)
    if stored[:1] != (length,):
        folder = episode_folder(dataset.path, episode)
        raise UserError(
            f"{folder / OBJECTS}: array '{OBJECTS}' of episode {episode} has "
            f"{stored[0] if stored else 'no'} frames, but its episode.json says length = {length}; "
            f"write the episode again, or remove {folder / OBJECTS}."
        )


def read_objects(
    dataset: Dataset, episode: int, start: int | None = None, length: int | None = None
) -> Objects | None:
    """Read the objects of an episode.

    Args:
      dataset: to read from.
      episode: number of the episode.
      start: first frame; None reads all of them.
      length: frames.

    Returns:
      The objects; None where there are none, or their poses or shapes are not known.

    Raises:
      UserError: the poses are damaged or are not those of the objects and frames listed.
    """
    if not has_objects(dataset, episode):
        return None
    require_frames(dataset, episode)
    dataset, episode = dataset.source_of(episode)
    listed = dataset.objects(dataset.episode(episode))
    poses = dataset.read(episode, OBJECTS, start, length).astype(np.float64)
    if poses.shape[1:] != (len(listed), 4, 4) or not np.isfinite(poses).all():
        raise UserError(
            f"{dataset.path}: '{OBJECTS}' of episode {episode} should hold finite poses of its "
            f"{len(listed)} objects, shape (frames, {len(listed)}, 4, 4), but has "
            f"{poses.shape}; write the episode again, or remove its objects' shapes."
        )
    return Objects(tuple(e.name for e in listed), _shapes(listed), poses)


def _shapes(listed: Sequence[ObjectInfo]) -> tuple[Shape, ...]:
    return tuple(entry.shape for entry in listed if entry.shape is not None)
