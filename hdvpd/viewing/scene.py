"""A recording in viser's three dimensions: particles, skeleton, cameras and the workspace's box.

There is one node per kind of thing; a step in time sends each its new arrays. Particles travel as
16-bit floats about the middle of the workspace, which keeps them within a quarter of a millimetre
in a box of a metre, in half the bytes.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import viser
import viser.transforms

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Bool, Float, UInt8
from hdvpd.viewing.colors import colored
from hdvpd.viewing.recording import PREDICTION, TRUTH, Recording

FRUSTUM_M = 0.12
"""Length of a drawn camera [m]."""

_ORANGE = (255, 140, 0)
_BLUE = (60, 120, 220)
_MARKED = (255, 0, 200)

Shown = Literal["truth", "prediction", "both"]


class SceneView:
    """Draws one time of a recording on a viser server.

    Attributes:
      recording: what is drawn.
      point_size: edge of a drawn particle [m].
    """

    def __init__(self, server: viser.ViserServer, recording: Recording) -> None:
        """Draw the parts that do not move, and place the camera of browsers that come."""
        self._server = server
        self._colors: dict[tuple[str, str], UInt8[np.ndarray, "t n 3"]] = {}
        self._clouds: dict[str, viser.PointCloudHandle] = {}
        self.point_size = 0.006
        server.scene.set_up_direction("+z")
        self.take(recording)
        middle, extent = self._middle, float(np.linalg.norm(np.ptp(recording.workspace, axis=0)))
        server.initial_camera.position = tuple(middle + extent * np.array([0.75, -0.5, 0.55]))
        server.initial_camera.look_at = tuple(middle)
        server.initial_camera.up = (0.0, 0.0, 1.0)

    def take(self, recording: Recording) -> None:
        """Draw another recording from now on."""
        self.recording = recording
        self._colors.clear()
        scene = self._server.scene
        self._middle = np.mean(recording.workspace, axis=0)
        for node in (*self._clouds.values(), *getattr(self, "_frusta", ())):
            node.remove()
        edges = _box_edges(*(np.asarray(corner) for corner in recording.workspace))
        self._box = scene.add_line_segments(
            "/workspace", edges, (170, 170, 170), thickness=1.0, thickness_units="screen"
        )
        self._clouds = {
            name: scene.add_point_cloud(
                f"/{name}",
                np.zeros((1, 3), np.float32),
                np.zeros((1, 3), np.uint8),
                point_size=self.point_size,
                point_shape="circle",
                position=tuple(self._middle),
                visible=False,
            )
            for name in recording.layers
        }
        self._frusta = [self._add_camera(view) for view in range(len(recording.cameras))]
        empty = np.zeros((1, 2, 3), np.float32)
        self._skeleton = scene.add_line_segments("/robot/bones", empty, _BLUE, thickness=0.008)
        self._joints = scene.add_point_cloud(
            "/robot/points",
            np.zeros((1, 3), np.float32),
            _ORANGE,
            point_size=0.012,
            point_shape="circle",
            position=tuple(self._middle),
        )

    def _add_camera(self, view: int) -> viser.CameraFrustumHandle:
        height, width = next(iter(self.recording.layers.values())).rgb.shape[2:4]
        focal = float(self.recording.camera.intrinsics[0, view, 1, 1])
        return self._server.scene.add_camera_frustum(
            f"/cameras/{view}",
            fov=2 * np.arctan(height / 2 / focal),
            aspect=width / height,
            scale=FRUSTUM_M,
            color=(60, 60, 60),
            thickness=1.5,
            thickness_units="screen",
        )

    def draw(
        self,
        time: int,
        *,
        shown: Shown,
        coloring: str,
        skeleton: bool = True,
        cameras: bool = True,
        box: bool = True,
        marked: Callable[[str, int], Bool[np.ndarray, "n"] | None] = lambda layer, time: None,
    ) -> None:
        """Draw a time, all at once.

        Args:
          time: which of the recording's.
          shown: truth, prediction, or both; what is not there is left out.
          coloring: see `colors.COLORINGS`.
          skeleton: draw the kinematic points.
          cameras: draw the cameras with their images.
          box: draw the workspace.
          marked: from layer and time to the particles to mark, or None.
        """
        recording = self.recording
        with self._server.atomic():
            for name, cloud in self._clouds.items():
                cloud.visible = is_shown(recording, name, shown)
                if cloud.visible:
                    self._draw_cloud(name, time, coloring, marked(name, time))
            points = recording.robot[time]
            pairs = np.asarray(recording.bones, int).reshape(-1, 2)
            self._skeleton.visible = skeleton and len(pairs) > 0
            self._joints.visible = skeleton
            if skeleton:
                self._joints.points = (points - self._middle).astype(np.float16)
                if len(pairs):
                    self._skeleton.points = points[pairs].astype(np.float32)
            for view, frustum in enumerate(self._frusta):
                frustum.visible = cameras
                if cameras:
                    self._draw_camera(frustum, time, view, shown)
            self._box.visible = box

    def _draw_cloud(
        self, name: str, time: int, coloring: str, marked: Bool[np.ndarray, "n"] | None
    ) -> None:
        particles, cloud = self.recording.layers[name].particles, self._clouds[name]
        mask = particles.mask[time]
        key = name, coloring
        if key not in self._colors:
            self._colors[key] = colored(self.recording, name, coloring)
        colors = self._colors[key][time]
        if marked is not None:
            colors = np.where(marked[:, None], np.asarray(_MARKED, np.uint8), colors)
        if not mask.any():  # viser's page takes no empty cloud
            cloud.visible = False
            return
        cloud.points = (particles.positions[time][mask] - self._middle).astype(np.float16)
        cloud.colors = colors[mask]
        cloud.point_size = self.point_size

    def _draw_camera(
        self, frustum: viser.CameraFrustumHandle, time: int, view: int, shown: Shown
    ) -> None:
        pose = np.asarray(self.recording.camera.camera_to_world)[time, view]
        frustum.wxyz = viser.transforms.SO3.from_matrix(pose[:3, :3]).wxyz
        frustum.position = pose[:3, 3]
        names = [name for name in self.recording.layers if is_shown(self.recording, name, shown)]
        frustum.image = self.recording.layers[names[-1]].rgb[time, view]


def is_shown(recording: Recording, name: str, shown: Shown) -> bool:
    """Say whether a layer is drawn; the only one of a recording always is."""
    return shown in (name, "both") or len(recording.layers) == 1


def _box_edges(
    low: Float[np.ndarray, "3"], high: Float[np.ndarray, "3"]
) -> Float[np.ndarray, "12 2 3"]:
    corners = np.stack(np.meshgrid(*np.stack([low, high], -1), indexing="ij"), -1).reshape(-1, 3)
    pairs = [(i, i | bit) for i in range(8) for bit in (1, 2, 4) if not i & bit]
    return corners[np.asarray(pairs)].astype(np.float32)


def camera_pose(camera: viser.CameraHandle) -> Float[np.ndarray, "4 4"]:
    """Return where a browser looks from, as the pose of a camera with OpenCV axes [m].

    Raises:
      UserError: the browser has gone.
    """
    try:
        rotation = viser.transforms.SO3(np.asarray(camera.wxyz)).as_matrix()
        position = camera.position
    except AssertionError as error:
        raise UserError("the browser has not yet said where it looks from") from error
    pose = np.eye(4, dtype=np.float32)
    pose[:3, :3], pose[:3, 3] = rotation, position
    return pose


def layers_of(recording: Recording) -> tuple[Shown, ...]:
    """Return what can be chosen to be shown of a recording."""
    both = TRUTH in recording.layers and PREDICTION in recording.layers
    if both:
        return ("prediction", "truth", "both")
    return ("prediction",) if PREDICTION in recording.layers else ("truth",)
