"""A state: particles of two observed steps, the robot and the cameras, as a value.

Nothing is changed in place: every method returns a new state, so states can be kept, compared and
combined. The two clouds are drawn independently (`Model.encode`), so what is edited is chosen by
place, in both of them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Bool, Camera, Float, ParticleCloud, RgbdFrames, RobotPoints, UInt8
from hdvpd.data.pinhole import scale_intrinsics
from hdvpd.dynamics.base import Known
from hdvpd.dynamics.unseen import Unseen
from hdvpd.world import saving

Place = Callable[[Float[np.ndarray, "n 3"]], Bool[np.ndarray, "n"]]
"""Says of positions [m] which are meant."""

CAPACITY_STEP = 256
"""Room for particles grows in steps of this many: a model is compiled once per room."""


def inside(low: Sequence[float], high: Sequence[float]) -> Place:
    """Mean the particles in an axis-aligned box.

    Args:
      low: its lower corner [m].
      high: its upper corner [m].
    """
    lower, upper = np.asarray(low, np.float32)[None], np.asarray(high, np.float32)[None]
    return lambda x: np.asarray(((x >= lower) & (x <= upper)).all(axis=-1))


def near(point: Sequence[float] | Float[np.ndarray, "3"], radius: float) -> Place:
    """Mean the particles within a radius [m] of a point [m]."""
    centre = np.asarray(point, np.float32)[None]
    return lambda positions: np.linalg.norm(positions - centre, axis=-1) <= radius


_CLOUD = ("positions", "features", "mask")
_ROBOT = "positions", "axes", "gripper"
_ROBOTS, _UNSEEN = "known/robots", "known/unseen/"


@dataclass(frozen=True)
class State:
    """What a rollout starts from.

    Attributes:
      previous: particles of the step before the last, padded; numpy.
      current: particles of the last step.
      colors: of the real particles of the last step, in the order of `positions`, as seen by a
        camera.
      robot: measured kinematic points of both steps, axes (2).
      joints: measured joints of both steps, in the units of the data, or None where unknown.
      cameras: by name, as they stood at the last step, for images of `size`.
      size: height and width of the cameras' images [px].
      mounts: the link that carries a camera, by the camera's name; others stand still.
      frames: the two observed steps, axes (2 v) in the order of `cameras`; None if not kept.
      episode: of the data set; with `start` it decides what the dynamics draws.
      start: frame of the episode that is the first of the two.
      source: title of the data set that has `robot` where it is; empty where that follows from the
        run's own robot model, or is predicted.
      known: of a predicted state, what its rollout knew of the particles, rows as in `current`:
        which are the robot's, and with `model.stochastic` what is hidden of things. The next
        rollout goes on with it, whatever its seed. None of an observed state: a rollout tells the
        robot by where it stands, and draws what is hidden.
    """

    previous: ParticleCloud
    current: ParticleCloud
    colors: UInt8[np.ndarray, "m 3"]
    robot: RobotPoints
    joints: Float[np.ndarray, "2 j"] | None
    cameras: Mapping[str, Camera]
    size: tuple[int, int]
    mounts: Mapping[str, str] = field(default_factory=dict)
    frames: RgbdFrames | None = None
    episode: int = 0
    start: int = 0
    source: str = ""
    known: Known | None = None

    @property
    def positions(self) -> Float[np.ndarray, "m 3"]:
        """Positions of the last step's real particles [m]."""
        return np.asarray(self.current.positions)[self.current.mask]

    @property
    def features(self) -> Float[np.ndarray, "m c"]:
        """Features of the last step's real particles."""
        return np.asarray(self.current.features)[self.current.mask]

    @property
    def padded_colors(self) -> UInt8[np.ndarray, "n 3"]:
        """The colours in the rows of `current`; 0 for padding."""
        rows = np.zeros((len(self.current.mask), 3), np.uint8)
        rows[self.current.mask] = self.colors
        return rows

    @property
    def kinematic_points(self) -> Float[np.ndarray, "p 3"]:
        """Measured kinematic points of the last step [m]."""
        return np.asarray(self.robot.positions)[-1]

    def keep(self, place: Place) -> "State":
        """Keep the particles at a place and no others.

        Raises:
          UserError: no particle of the last step is there.
        """
        self.require(place)
        clouds = (_masked(c, _at(c, place)) for c in (self.previous, self.current))
        return self._with(*clouds)

    def remove(self, place: Place) -> "State":
        """Remove the particles at a place.

        Raises:
          UserError: no particle of the last step is there.
        """
        self.require(place)
        clouds = (
            _masked(c, np.asarray(c.mask) & ~_at(c, place)) for c in (self.previous, self.current)
        )
        return self._with(*clouds)

    def move(self, place: Place, motion: Sequence[float] | Float[np.ndarray, "4 4"]) -> "State":
        """Move the particles at a place.

        Args:
          place: which.
          motion: an offset [m], or a pose that maps old points to new ones.

        Raises:
          UserError: no particle of the last step is there, or the motion is neither.
        """
        self.require(place)
        pose = _pose(motion)
        clouds = (_moved(c, _at(c, place), pose) for c in (self.previous, self.current))
        return self._with(*clouds)

    def copy(self, place: Place, motion: Sequence[float] | Float[np.ndarray, "4 4"]) -> "State":
        """Put a second set of the particles at a place somewhere else; arguments as in `move`.

        Raises:
          UserError: no particle of the last step is there, or the motion is neither.
        """
        return self.merge(self.keep(place).move(lambda x: np.ones(len(x), bool), motion))

    def merge(self, other: "State") -> "State":
        """Add the particles of another state; robot, joints and cameras stay this one's.

        What is `known` of an observed and of a predicted state differs, so of both together
        nothing is: the next rollout tells it anew.

        Args:
          other: encoded by the same model.

        Raises:
          UserError: its features are of another width.
        """
        widths = self.features.shape[-1], other.features.shape[-1]
        if widths[0] != widths[1]:
            raise UserError(
                f"States with {widths[0]} and {widths[1]} features per particle cannot be merged: "
                "encode both with the same model."
            )
        pairs = [(self.previous, other.previous), (self.current, other.current)]
        most = max(int(a.mask.sum() + b.mask.sum()) for a, b in pairs)
        room = max(len(self.current.mask), -(-most // CAPACITY_STEP) * CAPACITY_STEP)
        previous, current = (_joined(a, b, room) for a, b in pairs)
        colors = np.concatenate([self.colors, other.colors])
        return dataclasses.replace(
            self,
            previous=previous,
            current=current,
            colors=colors,
            frames=None,
            known=self._known_of_both(other, room),
        )

    def _known_of_both(self, other: "State", room: int) -> Known | None:
        if jax.tree.structure(self.known) != jax.tree.structure(other.known):
            return None

        def join(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return _padded(np.concatenate([a[self.current.mask], b[other.current.mask]]), room)

        return jax.tree.map(join, self.known, other.known)

    def thinned(self, count: int) -> "State":
        """Keep at most so many particles of each step, drawn evenly: quicker, with coarser images.

        Particles are in Z order, so that every k-th of them leaves no part of the scene out.

        Raises:
          UserError: it would keep none.
        """
        if count < 1:
            raise UserError(f"thinned({count}) would keep no particle: give 1 or more.")
        room = min(count, len(self.current.mask))

        def few(cloud: ParticleCloud, tree: Any) -> Any:
            real = np.flatnonzero(cloud.mask)
            order = np.linspace(0, len(real) - 1, min(room, len(real))).round().astype(int)
            return jax.tree.map(lambda x: _padded(np.asarray(x)[real[order]], room), tree)

        colors = few(self.current, self.padded_colors)
        previous, current = (few(cloud, cloud) for cloud in (self.previous, self.current))
        return dataclasses.replace(
            self,
            previous=previous,
            current=current,
            colors=colors[current.mask],
            known=few(self.current, self.known),
        )

    def save(self, file: str | Path) -> None:
        """Save as `.npz`, which `State.load` reads, or the last step's particles as `.ply`.

        The observed images are not saved.

        Raises:
          UserError: another ending, or the disk is full or not writable.
        """
        file = Path(file)
        if saving.require_suffix(file) == ".ply":
            places, mask = (np.asarray(x) for x in (self.current.positions, self.current.mask))
            saving.write_ply(file, places, self.padded_colors, mask)
            return
        clouds = (("previous", self.previous), ("current", self.current))
        arrays = {f"{name}_{key}": getattr(cloud, key) for name, cloud in clouds for key in _CLOUD}
        arrays |= {f"robot_{key}": getattr(self.robot, key) for key in _ROBOT}
        arrays["colors"] = self.padded_colors
        if self.joints is not None:
            arrays["joints"] = self.joints
        if self.known is not None:
            hidden = {} if self.known.unseen is None else vars(self.known.unseen)
            arrays[_ROBOTS] = self.known.robots
            arrays |= {_UNSEEN + key: rows for key, rows in hidden.items()}
        for name, camera in self.cameras.items():
            arrays[f"camera/{name}/intrinsics"] = camera.intrinsics
            arrays[f"camera/{name}/camera_to_world"] = camera.camera_to_world
        facts = {
            "cameras": list(self.cameras),
            "size": list(self.size),
            "mounts": dict(self.mounts),
            "episode": self.episode,
            "start": self.start,
            "source": self.source,
        }
        saving.write_npz(file, "state", arrays, facts)

    @staticmethod
    def load(file: str | Path) -> "State":
        """Read a state that `save` wrote as `.npz`.

        Raises:
          UserError: it is missing, damaged, or no state.
        """
        arrays, facts = saving.read_npz(Path(file), "state")
        previous, current = (
            ParticleCloud(*(arrays[f"{name}_{key}"] for key in _CLOUD))
            for name in ("previous", "current")
        )
        return State(
            previous=previous,
            current=current,
            colors=arrays["colors"][current.mask],
            robot=RobotPoints(*(arrays[f"robot_{key}"] for key in _ROBOT)),
            joints=arrays.get("joints"),
            cameras={
                name: Camera(
                    arrays[f"camera/{name}/intrinsics"], arrays[f"camera/{name}/camera_to_world"]
                )
                for name in facts["cameras"]
            },
            size=(facts["size"][0], facts["size"][1]),
            mounts=facts["mounts"],
            episode=facts["episode"],
            start=facts["start"],
            source=facts.get("source", ""),  # not in files of earlier versions
            known=_known_from(arrays),
        )

    def require(self, place: Place) -> None:
        """Check that the last step shows something at a place.

        Raises:
          UserError: no particle is there.
        """
        if not _at(self.current, place).any():
            low, high = (f(self.positions, axis=0, initial=0) for f in (np.min, np.max))
            raise UserError(
                "No particle of the state lies at the chosen place; its particles reach from "
                f"{np.round(low, 2).tolist()} to {np.round(high, 2).tolist()} [m]."
            )

    def _with(self, previous: ParticleCloud, current: ParticleCloud) -> "State":
        colors = self.padded_colors[current.mask]
        known = jax.tree.map(lambda x: (x.T * current.mask).T, self.known)
        return dataclasses.replace(
            self, previous=previous, current=current, colors=colors, frames=None, known=known
        )


def scaled(camera: Camera, old: tuple[int, int], new: tuple[int, int]) -> Camera:
    """Return a camera for images of another height and width [px]."""
    if new == old:
        return camera
    intrinsics = scale_intrinsics(np.asarray(camera.intrinsics, np.float64), old, new)
    return dataclasses.replace(camera, intrinsics=intrinsics.astype(np.float32))


def find_camera(state: State, camera: str | Camera, size: tuple[int, int] | None = None) -> Camera:
    """Return a camera itself, or the observed one of a name, for images of a size.

    Args:
      state: that was observed.
      camera: name of an observed one, or any other, which is for the size already.
      size: height and width [px]; by default that of the observed images.

    Raises:
      UserError: there is no camera of that name, or the size is none.
    """
    if size is not None and (np.shape(size) != (2,) or min(size) < 1):
        raise UserError(
            f"size={size} is none of an image: give height and width [px], such as {state.size}."
        )
    if isinstance(camera, Camera):
        return camera
    if camera not in state.cameras:
        raise UserError(
            f"There is no camera {camera!r}; the state was observed by "
            f"{', '.join(state.cameras) or 'none'}. Give one of these names, or a hdvpd.Camera."
        )
    return scaled(state.cameras[camera], state.size, size or state.size)


def _known_from(arrays: Mapping[str, np.ndarray]) -> Known | None:
    if _ROBOTS not in arrays:
        return None
    names = [name for name in arrays if name.startswith(_UNSEEN)]
    hidden = {name.removeprefix(_UNSEEN): arrays[name] for name in names}
    return Known(arrays[_ROBOTS], Unseen(**hidden) if hidden else None)


def _at(cloud: ParticleCloud, place: Place) -> np.ndarray:
    return np.asarray(cloud.mask) & np.asarray(place(np.asarray(cloud.positions)), bool)


def _masked(cloud: ParticleCloud, mask: np.ndarray) -> ParticleCloud:
    """Keep some particles; the others become padding."""
    return ParticleCloud(
        positions=np.where(mask[:, None], cloud.positions, np.float32(0)),
        features=np.where(mask[:, None], cloud.features, np.float32(0)),
        mask=mask,
    )


def _moved(cloud: ParticleCloud, mask: np.ndarray, pose: np.ndarray) -> ParticleCloud:
    moved = cloud.positions @ pose[:3, :3].T + pose[None, :3, 3]
    positions = np.where(mask[:, None], moved, cloud.positions).astype(np.float32)
    return dataclasses.replace(cloud, positions=positions)


def _joined(a: ParticleCloud, b: ParticleCloud, room: int) -> ParticleCloud:
    positions = np.concatenate([a.positions[a.mask], b.positions[b.mask]])
    features = np.concatenate([a.features[a.mask], b.features[b.mask]])
    mask = np.arange(room) < len(positions)
    return ParticleCloud(_padded(positions, room), _padded(features, room), mask)


def _padded(rows: np.ndarray, room: int) -> np.ndarray:
    return np.pad(rows, [(0, room - len(rows)), *[(0, 0)] * (rows.ndim - 1)])


def _pose(motion: Sequence[float] | np.ndarray) -> np.ndarray:
    given = np.asarray(motion, np.float64)
    pose = np.eye(4)
    if given.shape == (3,):
        pose[:3, 3] = given
    elif given.shape == (4, 4):
        pose = given
    if given.shape not in ((3,), (4, 4)) or not np.isfinite(given).all():
        raise UserError(
            f"A motion of shape {given.shape} should be an offset (3,) [m] or a pose (4, 4), all "
            "numbers finite."
        )
    return pose
