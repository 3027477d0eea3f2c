"""What formats share when they open an episode: everything where the user has the last word."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hdvpd.basics.types import Float
from hdvpd.data.corrections import NOTHING
from hdvpd.data.importers.base import Channels, EndEffector, Options, View
from hdvpd.data.importers.faults import SourcePlace
from hdvpd.data.importers.robot_model import Joint
from hdvpd.data.importers.sidecar import SAFE_NAME

MAX_TARGET_DISTANCE = 0.5
"""An absolute joint target lies nearer than this to the next position [rad, m]."""


def number_in(name: str) -> tuple[int, str]:
    """Return a sorting key: the last number in a name, so that 2 comes before 10."""
    numbers = re.findall(r"\d+", name)
    return (int(numbers[-1]) if numbers else -1, name)


def dig(raw: Any, *keys: str) -> Any:
    """Return what lies below keys of nested JSON objects; None where one is missing."""
    for key in keys:
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    return raw


class Choices:
    """The user's options applied to one episode."""

    def __init__(self, place: SourcePlace, options: Options) -> None:
        self.place, self.options = place, options

    def cameras(self, available: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Choose the cameras of an episode.

        Args:
          available: every camera of the episode with the reason why it cannot be used, empty if it
            can.

        Returns:
          Names in the order wanted, or in that of the source; and a sentence for every camera that
          is left out because it cannot be used.

        Raises:
          BadEpisodeError: a camera is missing or not usable, none is left, or a name is no name.
        """
        place, wanted = self.place, self.options.cameras
        for name in (*available, *wanted):
            if not SAFE_NAME.fullmatch(name):
                raise place.error(
                    f"the camera name {name!r} cannot be the name of a folder",
                    "Names are letters, digits, '_', '-', '+' and '.', not beginning with a '.'.",
                )
        for name in wanted:
            if name not in available:
                raise place.error(
                    f"there is no camera {name!r}",
                    f"It has {', '.join(available) or 'none'}; choose with --cameras.",
                )
            if available[name]:
                raise place.error(f"camera {name!r} cannot be imported: {available[name]}")
        unusable = {name: reason for name, reason in available.items() if reason}
        chosen = wanted or tuple(name for name in available if name not in unusable)
        if not chosen:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in unusable.items())
            raise place.error(f"no camera can be imported ({reasons or 'there are none'})")
        return chosen, tuple(f"camera {n} is left out: {r}" for n, r in unusable.items())

    def is_given(self, camera: str) -> bool:
        """Say whether the side-car calibrates a camera."""
        return camera in self.options.sidecar.cameras

    def view(self, camera: str, size: tuple[int, int], recorded: Callable[[], View]) -> View:
        """Calibrate a camera: by the side-car where it names the camera, else as recorded.

        Its lag is that of the side-car's corrections in either case.

        Raises:
          BadEpisodeError: the side-car is for images of another aspect ratio.
        """
        sidecar = self.options.sidecar
        late_s = sidecar.corrections.cameras.get(camera, NOTHING).lag_s
        if not self.is_given(camera):
            return dataclasses.replace(recorded(), late_s=late_s)
        given = sidecar.cameras[camera]
        if not np.isclose(given.size[0] * size[1], given.size[1] * size[0]):
            raise self.place.error(
                f"camera {camera!r} has images of {size[0]}x{size[1]}, but its calibration is for "
                f"{given.size[0]}x{given.size[1]}: another aspect ratio",
                "Cropping moves the principal point: calibrate for the images as they are.",
            )
        return View(size, given.intrinsics_for(size), given.camera_to_world, given.link, late_s)

    def channels(self, usual: Channels = "rgb") -> Channels:
        """Return the order of stored colours."""
        return self.options.channels or usual

    def depth_unit_m(self, camera: str, usual: float) -> float:
        """Return the metres per stored unit of a camera's depth."""
        given = self.options.sidecar.cameras.get(camera)
        return self.options.depth_unit_m or (given and given.depth_unit_m) or usual

    def rate(
        self, usual: float, why: str, recorded: Any = None, origin: str = ""
    ) -> tuple[float, str]:
        """Choose the rate of a source without time stamps: as given, as recorded, or the usual.

        Args:
          usual: of the format [Hz].
          why: it is usual, for people.
          recorded: what the source says, of any type [Hz].
          origin: where it says so, for people.

        Returns:
          Rate [Hz], and where it comes from, for people.
        """
        rate, source = usual, f"{why}; --rate overrides"
        if isinstance(recorded, int | float) and recorded > 0:
            rate, source = float(recorded), origin
        if self.options.rate_hz:
            rate, source = self.options.rate_hz, "as given"
        return rate, f"{rate:.4g} Hz, {source}"

    def joints(self, recorded: Sequence[Joint]) -> tuple[Joint, ...]:
        """Name the joints: by the side-car where it does, else as the source does.

        Raises:
          BadEpisodeError: the side-car names another number of joints.
        """
        sidecar = self.options.sidecar
        if sidecar.joints and len(sidecar.joints) != len(recorded):
            raise self.place.error(
                f"{sidecar.file} names {len(sidecar.joints)} joints, the source has "
                f"{len(recorded)}",
                f"The source's are {', '.join(joint.name for joint in recorded)}.",
            )
        return sidecar.joints or tuple(recorded)

    def targets(
        self, actions: Float[np.ndarray, "a c"], positions: Float[np.ndarray, "f j"]
    ) -> tuple[Float[np.ndarray, "f j"] | None, str]:
        """Take actions as joint targets, as `targets_from_actions` does.

        Raises:
          BadEpisodeError: they cannot be, although the user says so.
        """
        targets, meaning = targets_from_actions(actions, positions)
        if self.options.joint_targets and targets is None:
            raise self.place.error(f"--action joint-targets: {meaning}", "Leave the flag out.")
        return targets, meaning

    def end_effectors(
        self, columns: Callable[[Sequence[str]], Float[np.ndarray, "f 3"]]
    ) -> tuple[EndEffector, ...]:
        """Read the tools that the side-car names from columns <tool>.x, <tool>.y, <tool>.z.

        Args:
          columns: reads those of these names, or raises a `BadEpisodeError` [m].
        """
        tools = []
        for name, arm in self.options.sidecar.end_effectors:
            position = columns([f"{name}.{axis}" for axis in "xyz"])
            pose = np.tile(np.eye(4), (len(position), 1, 1))
            pose[:, :3, 3] = position
            tools.append(EndEffector(name, arm, pose))
        return tuple(tools)

    def base_to_world(self) -> Float[np.ndarray, "4 4"]:
        """Return where the robot model's root stands: as the side-car says, or at the origin."""
        given = self.options.sidecar.base_to_world
        return np.eye(4) if given is None else given


def targets_from_actions(
    actions: Float[np.ndarray, "a c"], positions: Float[np.ndarray, "f j"]
) -> tuple[Float[np.ndarray, "f j"] | None, str]:
    """Take recorded actions as absolute joint targets, if that is what they can be.

    One action less than joints is a gripper with two fingers and one command: the fingers' next
    positions stand in for their targets.

    Args:
      actions: row t is commanded from frame t to t + 1.
      positions: measured joints.

    Returns:
      A target for every frame and joint, or None; and what was found, for people.
    """
    count, joints = actions.shape[1], positions.shape[1]
    if not len(actions) or count not in (joints, joints - 1):
        return None, f"next positions, because there are {count} actions for {joints} joints"
    moved = count if count == joints else count - 1
    following = positions[np.minimum(np.arange(len(positions)) + 1, len(positions) - 1)]
    commanded = actions[np.minimum(np.arange(len(positions)), len(actions) - 1), :moved]
    distance = np.abs(commanded - following[:, :moved])[: len(actions)].max()
    if not distance < MAX_TARGET_DISTANCE:
        return None, (
            f"next positions, because actions lie up to {distance:.2g} from them and so are no "
            "absolute joint positions"
        )
    rest = "" if moved == joints else f"; next positions for the last {joints - moved} joints"
    return np.hstack([commanded, following[:, moved:]]), f"actions{rest}"
