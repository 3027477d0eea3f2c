"""The shapes of simulated objects, and which points lie on them.

A shape is centred at its object's pose, with the object's axes. It is privileged truth like the
pose: evaluation and the choice of training windows read it, a model never does. Lengths are metres.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float

_SIZES = {"box": 3, "cylinder": 2, "sphere": 1}


@dataclass(frozen=True)
class Shape:
    """A box, a cylinder about z, or a sphere.

    Attributes:
      kind: box, cylinder or sphere.
      size: half lengths along x, y and z; radius and half height; or radius [m].
    """

    kind: str
    size: tuple[float, ...]

    def distance(self, points: Float[np.ndarray, "*batch 3"]) -> Float[np.ndarray, "*batch"]:
        """Return the signed distance of points in the object's axes, negative inside [m]."""
        if self.kind == "sphere":
            return np.linalg.norm(points, axis=-1) - self.size[0]
        if self.kind == "cylinder":
            radius = np.linalg.norm(points[..., :2], axis=-1)
            beyond = np.stack([radius, np.abs(points[..., 2])], axis=-1)
        else:
            beyond = np.abs(points)
        beyond = beyond - np.array(self.size).reshape((1,) * (beyond.ndim - 1) + (-1,))
        outside = np.linalg.norm(np.maximum(beyond, 0.0), axis=-1)
        return outside + np.minimum(beyond.max(axis=-1), 0.0)

    def corners(self) -> Float[np.ndarray, "8 3"]:
        """Return the corners of the shape's bounding box in the object's axes [m]."""
        first, last = self.size[0], self.size[-1]
        half = self.size if self.kind == "box" else (first, first, last)
        return np.array(list(itertools.product((-1.0, 1.0), repeat=3))) * np.array([half])

    def displacement(self, object_to_world: Float[np.ndarray, "f 4 4"]) -> Float[np.ndarray, "f"]:
        """Return how far the corners are, in the mean, from those of the first pose [m]."""
        turned = np.einsum("fij,cj->fci", object_to_world[:, :3, :3], self.corners())
        places = turned + object_to_world[:, None, :3, 3]
        return np.linalg.norm(places - places[:1], axis=-1).mean(axis=-1)

    def describe(self) -> dict[str, list[float]]:
        """Return the entry `shape` of an object in dataset.json or episode.json."""
        return {self.kind: list(self.size)}


def parse_shape(raw: Any, file: Path) -> Shape | None:
    """Read the `shape` of an object, such as {"box": [0.045, 0.06, 0.045]}.

    Args:
      raw: decoded JSON; None where the object has none.
      file: for messages.

    Raises:
      UserError: another kind, or not its number of positive lengths.
    """
    if raw is None:
        return None
    if isinstance(raw, Mapping) and len(raw) == 1:
        ((kind, size),) = raw.items()
        if (
            isinstance(size, list)
            and len(size) == _SIZES.get(kind)
            and all(
                isinstance(x, int | float) and not isinstance(x, bool) and 0 < x < np.inf
                for x in size
            )
        ):
            return Shape(kind, tuple(float(x) for x in size))
    raise UserError(
        f'{file}: objects.shape = {raw!r} should be {{"box": three half lengths}}, '
        '{"cylinder": radius and half height} or {"sphere": [radius]}, positive [m].'
    )
