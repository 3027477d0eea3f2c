"""A recording as a file for the rerun viewer, written without a display.

One timeline, `step`: the first predicted frame is 0, observed ones come before it; of a data set it
is the number of the frame. The layout that opens with the file: three dimensions, truth and
prediction of the first camera, and SSIM below them.
"""

import uuid
from pathlib import Path

import numpy as np
import rerun
import rerun.blueprint as layout

from hdvpd.basics.files import explain_write_errors, write
from hdvpd.viewing.recording import PREDICTION, Layer, Recording

TIMELINE = "step"
_QUALITY = 90  # of JPEG
_POINT_M, _JOINT_M, _BONE_M = 0.003, 0.008, 0.004
_ORANGE, _BLUE = (255, 140, 0), (60, 120, 220)
_REMEDY = "Free some space or permit writing there, then export again."


def write_rerun(recording: Recording, file: Path) -> None:
    """Write a recording as `.rrd`; the file is there when it is whole.

    Args:
      recording: what to write.
      file: its final place; its folder is made.

    Raises:
      UserError: the disk is full or not writable.
    """
    with explain_write_errors(file, _REMEDY):
        file.parent.mkdir(parents=True, exist_ok=True)
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"hdvpd/{recording.title}")
    stream = rerun.RecordingStream("hdvpd", recording_id=name)
    stream.set_log_time_enabled(False)
    stream.set_log_tick_enabled(False)
    # In memory: writing files itself, rerun reports a full disk by a RuntimeError without its
    # reason, or, where the last few hundred kilobytes do not fit, not at all.
    held = stream.memory_recording()
    stream.send_blueprint(_layout(recording), make_active=False, make_default=True)
    stream.send_recording_name(recording.title)
    _log_still(stream, recording)
    for time in range(recording.num_times):
        stream.set_time(TIMELINE, sequence=step_of(recording, time))
        _log_time(stream, recording, time)
    write(file, held.drain_as_bytes(), _REMEDY)
    stream.disconnect()


def step_of(recording: Recording, time: int) -> int:
    """Return the place of a time on the timeline."""
    if PREDICTION in recording.layers:
        return time - recording.num_observed
    return recording.frame(time)


def _layout(recording: Recording) -> layout.Blueprint:
    camera = _camera_path(recording, 0)
    images = [
        layout.Spatial2DView(origin=camera, contents=f"{camera}/{name}/rgb", name=name)
        for name in recording.layers
    ]
    scores = layout.TimeSeriesView(origin="/ssim", name="SSIM")
    shown = [*images, scores] if recording.ssim is not None else images
    return layout.Blueprint(
        layout.Horizontal(
            layout.Spatial3DView(origin="/world", name=recording.title),
            layout.Vertical(*shown),
            column_shares=[2, 1],
        ),
        layout.TimePanel(timeline=TIMELINE, expanded=True),
        layout.BlueprintPanel(expanded=False),
        layout.SelectionPanel(expanded=False),
        auto_views=False,
    )


def _camera_path(recording: Recording, view: int) -> str:
    return rerun.new_entity_path(["world", "cameras", recording.cameras[view]])


def _log_still(stream: rerun.RecordingStream, recording: Recording) -> None:
    low, high = (np.asarray(corner, np.float32) for corner in recording.workspace)
    stream.log("world", rerun.ViewCoordinates.RIGHT_HAND_Z_UP, static=True)
    box = rerun.Boxes3D(mins=[low], sizes=[high - low], colors=[(170, 170, 170)])
    stream.log("world/workspace", box, static=True)
    if recording.ssim is not None:
        for camera in recording.cameras:
            path = rerun.new_entity_path(["ssim", camera])
            stream.log(path, rerun.SeriesLines(names=[camera]), static=True)


def _log_time(stream: rerun.RecordingStream, recording: Recording, time: int) -> None:
    points = recording.robot[time]
    joints = rerun.Points3D(points, colors=[_ORANGE], radii=[_JOINT_M])
    stream.log("world/robot/points", joints)
    if recording.bones:
        strips = points[np.asarray(recording.bones)]
        bones = rerun.LineStrips3D(list(strips), colors=[_BLUE], radii=[_BONE_M])
        stream.log("world/robot/bones", bones)
    for name, layer in recording.layers.items():
        mask = layer.particles.mask[time]
        particles = rerun.Points3D(
            layer.particles.positions[time][mask],
            colors=layer.particles.colors[time][mask],
            radii=[_POINT_M],
        )
        stream.log(f"world/{name}", particles)
    for view in range(len(recording.cameras)):
        _log_camera(stream, recording, time, view)


def _log_camera(stream: rerun.RecordingStream, recording: Recording, time: int, view: int) -> None:
    path = _camera_path(recording, view)
    pose = recording.camera.camera_to_world[time, view]
    height, width = next(iter(recording.layers.values())).rgb.shape[2:4]
    stream.log(path, rerun.Transform3D(translation=pose[:3, 3], mat3x3=pose[:3, :3]))
    lens = rerun.Pinhole(
        image_from_camera=recording.camera.intrinsics[time, view],
        resolution=[width, height],
        camera_xyz=rerun.ViewCoordinates.RDF,
        image_plane_distance=0.15,
    )
    stream.log(path, lens)
    for name, layer in recording.layers.items():
        _log_images(stream, f"{path}/{name}", layer, time, view)
    if recording.ssim is not None and time >= recording.num_observed:
        score = rerun.Scalars([float(recording.ssim[time, view])])
        stream.log(rerun.new_entity_path(["ssim", recording.cameras[view]]), score)


def _log_images(
    stream: rerun.RecordingStream, path: str, layer: Layer, time: int, view: int
) -> None:
    rgb = rerun.Image(layer.rgb[time, view]).compress(jpeg_quality=_QUALITY)
    stream.log(f"{path}/rgb", rgb)
    millimetres = np.clip(np.rint(1000 * layer.depth_m[time, view]), 0, 65535).astype(np.uint16)
    depth = rerun.DepthImage(millimetres, meter=1000.0)
    # Apart from the world, where it would lie over the particles that were lifted from it.
    stream.log(f"depth{path.removeprefix('/world/cameras')}", depth)
