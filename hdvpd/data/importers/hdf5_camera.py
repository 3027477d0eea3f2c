"""Cameras in HDF5 files: colours and depth stacked over time, or colours as encoded pictures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hdvpd.data import checks, pinhole
from hdvpd.data.importers import conversions, images
from hdvpd.data.importers.base import Camera, Channels, RgbdImage, View
from hdvpd.data.importers.common import Choices
from hdvpd.data.importers.hdf5 import Node

MAX_DISAGREEMENT = 1e-3
SAPIEN = "intrinsic_cv, extrinsic_cv"
"""Where `sapien_view` finds the calibration, for people."""


@dataclass(frozen=True)
class Layout:
    """Where the pictures of a camera are, and how they are stored.

    Attributes:
      rgb: path of the colours: (T, H, W, 3), or (T,) encoded pictures.
      depth: path of the depth: (T, H, W, 1), or (T, H, W) beside encoded colours.
      unit_m: metres per unit of depth, usually.
      channels: order of the colours, usually.
      encoded: whether colours are encoded pictures.
    """

    rgb: str
    depth: str
    unit_m: float
    channels: Channels = "rgb"
    encoded: bool = False


def hdf5_camera(
    node: Node,
    name: str,
    frames: int,
    layout: Layout,
    choices: Choices,
    recorded: Callable[[tuple[int, int]], View],
    origin: str,
) -> Camera:
    """Open a camera.

    Args:
      node: group that the paths of the layout begin at.
      name: of the camera.
      frames: that it must have.
      layout: of its pictures.
      choices: the user's.
      recorded: reads the source's own calibration for images of a height and width [px].
      origin: where that is found, for people.

    Raises:
      BadEpisodeError: an array is missing or of another shape, or the calibration is damaged.
    """
    if layout.encoded:
        node.check_shape(layout.rgb, (frames,))
        node.check_shape(layout.depth, (frames, None, None))
    else:
        node.check_shape(layout.rgb, (frames, None, None, 3))
        node.check_shape(layout.depth, (frames, *node.shape(layout.rgb)[1:3], 1))
    height, width = node.shape(layout.depth)[1:3]
    unit_m = choices.depth_unit_m(name, layout.unit_m)
    channels = choices.channels(layout.channels)

    def read(rows: Sequence[int]) -> Iterator[RgbdImage]:
        colours, depths = node.rows(layout.rgb, rows), node.rows(layout.depth, rows)
        for row, rgb, depth in zip(rows, colours, depths, strict=True):
            if layout.encoded:
                size = (height, width)
                rgb = images.decode_rgb(_bytes(rgb), node.place, row, size, layout.rgb)
            else:
                rgb = images.require_rgb(rgb, node.place, row, layout.rgb)
            depth_m = conversions.metric_depth(depth.reshape(height, width), unit_m)
            yield RgbdImage(images.in_rgb_order(rgb, channels), depth_m)

    return Camera(
        choices.view(name, (height, width), lambda: recorded((height, width))),
        f"rgb {'from JPEG in the order' if layout.encoded else 'as'} {channels}, depth in units "
        f"of {unit_m:g} m, calibration "
        + ("as given" if choices.is_given(name) else f"from {origin}"),
        read,
    )


def sapien_view(camera: Node, frames: int, size: tuple[int, int]) -> View:
    """Read the calibration that SAPIEN's cameras record: `intrinsic_cv` and `extrinsic_cv`.

    Raises:
      BadEpisodeError: one is missing or of another shape, or the two poses differ.
    """
    world_to_camera = camera.read("extrinsic_cv", (frames, None, 4))
    if world_to_camera.shape[1] not in (3, 4):
        camera.check_shape("extrinsic_cv", (frames, 3, 4))
    pose = pinhole.invert_pose(pinhole.homogeneous(world_to_camera))
    if "cam2world_gl" in camera:
        recorded = camera.read("cam2world_gl", (frames, 4, 4))
        checks.check_finite(camera.place, "cam2world_gl", recorded)
        difference = np.abs(recorded @ pinhole.AXES["opengl"] - pose).max(axis=(1, 2))
        camera.place.require(
            np.asarray(difference < MAX_DISAGREEMENT),
            "cam2world_gl",
            f"it differs from the inverse of extrinsic_cv by up to {difference.max():.3g}",
            "One of the two is wrong (transposed, or of another camera): collect the data again, "
            "or give the poses with --calibration.",
        )
    return View(size, camera.read("intrinsic_cv", (frames, 3, 3)), pose)


def _bytes(encoded: object) -> bytes:
    known = isinstance(encoded, bytes | np.bytes_)
    return bytes(encoded) if known else np.asarray(encoded).tobytes()
