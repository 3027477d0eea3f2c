"""Changing a scene: the particles in a box are taken out, moved, or set down a second time."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hdvpd.basics.types import Bool, Float
from hdvpd.viewing.recording import Particles
from hdvpd.world.state import State

Action = Literal["remove", "move", "copy"]

SLOTS = 1024
"""Clouds that a copy enlarges grow by multiples of this, so that little is compiled anew."""


@dataclass(frozen=True)
class Box:
    """A box anywhere in the world.

    Attributes:
      pose: of its centre and axes, 4x4 [m].
      size: lengths of its edges [m].
    """

    pose: Float[np.ndarray, "4 4"]
    size: Float[np.ndarray, "3"]

    def holds(self, positions: Float[np.ndarray, "*batch 3"]) -> Bool[np.ndarray, "*batch"]:
        """Say which positions [m] lie inside or on the faces."""
        inside = (positions - self.pose[:3, 3]) @ self.pose[:3, :3]
        return np.asarray((np.abs(inside) <= self.size / 2).all(-1))


@dataclass(frozen=True)
class Edit:
    """What is done to the particles in a box.

    Attributes:
      action: remove them, move them, or set a copy of them down.
      box: which particles.
      to: where the box goes with what it holds, 4x4 [m]; not read when they are removed.
    """

    action: Action
    box: Box
    to: Float[np.ndarray, "4 4"]

    @property
    def motion(self) -> Float[np.ndarray, "4 4"]:
        """From where the particles are to where they go."""
        return self.to @ np.linalg.inv(self.box.pose)

    def of_state(self, state: State) -> State:
        """Do it to what a rollout starts from.

        Raises:
          UserError: the box holds no particle of the last step.
        """
        match self.action:
            case "remove":
                return state.remove(self.box.holds)
            case "move":
                return state.move(self.box.holds, self.motion)
            case "copy":
                return state.copy(self.box.holds, self.motion)


def _carried(positions: Float[np.ndarray, "n 3"], edit: Edit) -> Float[np.ndarray, "n 3"]:
    motion = edit.motion
    return (positions @ motion[:3, :3].T + motion[:3, 3]).astype(np.float32)


def edit_rows(
    positions: Float[np.ndarray, "n 3"], mask: Bool[np.ndarray, "n"], edit: Edit
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edit the particles of one time.

    Args:
      positions: [m].
      mask: which are real.
      edit: what to do.

    Returns:
      Positions and mask after the edit, and the row that every particle had before: a copy takes
      the place of padding, and new rows only if that does not suffice.
    """
    chosen, origin = mask & edit.box.holds(positions), np.arange(len(mask))
    positions, mask = positions.copy(), mask.copy()
    match edit.action:
        case "remove":
            mask[chosen], positions[chosen] = False, 0.0
        case "move":
            positions[chosen] = _carried(positions[chosen], edit)
        case "copy":
            sources = np.flatnonzero(chosen)
            missing = len(sources) - int((~mask).sum())
            if missing > 0:
                more = -(-missing // SLOTS) * SLOTS
                positions = np.pad(positions, ((0, more), (0, 0)))
                mask, origin = np.pad(mask, (0, more)), np.pad(origin, (0, more))
            places = np.flatnonzero(~mask)[: len(sources)]
            positions[places] = _carried(positions[sources], edit)
            mask[places], origin[places] = True, sources
    return positions, mask, origin


def _fill(values: np.ndarray, size: int) -> np.ndarray:
    return np.pad(values, ((0, size - len(values)), *((0, 0),) * (values.ndim - 1)))


def edit_particles(particles: Particles, edit: Edit) -> Particles:
    """Edit what is shown, at every time alike.

    Args:
      particles: of every time.
      edit: what to do.

    Returns:
      The particles after the edit.
    """
    times = range(len(particles.mask))
    rows = [edit_rows(particles.positions[t], particles.mask[t], edit) for t in times]
    size = max(len(mask) for _, mask, _ in rows)

    def of(values: np.ndarray) -> np.ndarray:
        return np.stack([_fill(values[t][rows[t][2]], size) for t in times])

    return dataclasses.replace(
        particles,
        positions=np.stack([_fill(positions, size) for positions, _, _ in rows]),
        mask=np.stack([_fill(mask, size) for _, mask, _ in rows]),
        colors=of(particles.colors),
        features=None if particles.features is None else of(particles.features),
    )
