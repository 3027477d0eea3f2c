"""One episode of an import, from its source to the native format."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from hdvpd.data import resizing, schema, writer
from hdvpd.data.arrays import JOINT_POSITIONS, JOINT_TARGETS, LINKS, TARGET_LINKS, camera_array
from hdvpd.data.corrections import Corrections
from hdvpd.data.importers import base, conversions, describe
from hdvpd.data.importers.describe import Job
from hdvpd.data.importers.faults import BadEpisodeError, SourcePlace
from hdvpd.data.importers.prepare import Prepared, prepare

_PROBE = 4
"""Every so many pixels are looked at when the unit of depth is judged."""


def import_episode(
    job: Job,
    description: Mapping[str, Any],
    skip_bad: bool,
    item: tuple[int, base.SourceEpisode],
) -> tuple[int, str]:
    """Write one episode, in any process.

    Args:
      job: the import.
      description: content of its dataset.json.
      skip_bad: whether a bad episode is left out instead of raised.
      item: number in the data set, and the episode.

    Returns:
      The number, and why the episode was left out or nothing.

    Raises:
      BadEpisodeError: the episode cannot be imported.
      UserError: the disk is full or not writable.
    """
    number, episode = item
    try:
        source = job.source()
        corrections = source.options.sidecar.corrections
        with source.open(episode) as recording:
            prepared = prepare(recording, episode.place, job.settings)
            describe.require_alike(prepared, description, episode.place)
            meta = _meta(episode, recording, prepared, number, description)
            with writer.new_episode(job.out, number, meta) as target:
                target.write(corrected_arrays(prepared, corrections))
                _write_images(target, recording, prepared, episode.place, corrections)
    except BadEpisodeError as error:
        if not skip_bad:
            raise
        return number, str(error)
    return number, ""


def _meta(
    episode: base.SourceEpisode,
    recording: base.Recording,
    prepared: Prepared,
    number: int,
    description: Mapping[str, Any],
) -> Mapping[str, Any]:
    judged = {} if episode.success is None else {"success": episode.success}
    return {
        "length": len(prepared.rows),
        "task": episode.task,
        "split": episode.split or schema.split_of(number, description["source"]["episodes"]),
        **judged,
        **prepared.meta,
        "source": episode.name,
        "warnings": [*recording.warnings, *prepared.warnings],
    }


def _write_images(
    target: writer.EpisodeWriter,
    recording: base.Recording,
    prepared: Prepared,
    place: SourcePlace,
    corrections: Corrections,
) -> None:
    """Stream the images, a shard at a time: one is compressed while the next is decoded."""
    frames = len(prepared.rows)
    shapes: dict[str, tuple[tuple[int, ...], type]] = {}
    for name, size in prepared.sizes.items():
        shapes[camera_array(name, "rgb")] = (*size, 3), np.uint8
        shapes[camera_array(name, "depth")] = size, np.float32
    for array, (shape, dtype) in shapes.items():
        target.create(array, (frames, *shape), dtype)
    pictures = recording.frames(prepared.rows.tolist())
    for start in range(0, frames, writer.MAX_SHARD_FRAMES):
        count = min(writer.MAX_SHARD_FRAMES, frames - start)
        shard = {
            array: np.empty((count, *shape), dtype) for array, (shape, dtype) in shapes.items()
        }
        for k, shown in enumerate(itertools.islice(pictures, count)):
            for name, image in shown.items():
                check_depth(image, name, place, int(prepared.rows[start + k]))
                size = prepared.sizes[name]
                rgb, depth = (shard[camera_array(name, key)] for key in ("rgb", "depth"))
                rgb[k] = resizing.resize_rgb(image.rgb[None], *size)[0]
                depth[k] = resizing.resize_depth(image.depth_m[None], *size)[0]
        for name, correction in corrections.cameras.items():
            if name in prepared.sizes:
                rgb, depth = (camera_array(name, key) for key in ("rgb", "depth"))
                at = prepared.arrays[camera_array(name, "intrinsics")]
                matrices = correction.matrices(at if at.ndim == 2 else at[start : start + count])
                shard[rgb] = np.ascontiguousarray(correction.images(shard[rgb]))
                metres = correction.depth_scale * correction.depth(shard[depth], matrices, 1.0)
                shard[depth] = metres.astype(np.float32)
        target.write_frames(start, shard)


def corrected_arrays(prepared: Prepared, corrections: Corrections) -> Mapping[str, np.ndarray]:
    """Return the arrays of an episode but for its images, corrected.

    Args:
      prepared: the recording in native form.
      corrections: of cameras and robot; those of cameras that are not imported do nothing.
    """
    arrays = dict(prepared.arrays)
    for name, correction in corrections.cameras.items():
        if name in prepared.sizes:
            matrix, pose = (camera_array(name, key) for key in ("intrinsics", "camera_to_world"))
            arrays[matrix] = correction.matrices(arrays[matrix])
            arrays[pose] = correction.poses(arrays[pose])
    if corrections.moves_robot:
        robot = schema.parse_robot(prepared.robot, corrections.file)
        for links in (LINKS, TARGET_LINKS):
            arrays[links] = corrections.links(arrays[links], robot.links).astype(np.float32)
        for joints in (JOINT_POSITIONS, JOINT_TARGETS):
            moved = corrections.joint_values(arrays[joints], robot.joints)
            arrays[joints] = moved.astype(np.float32)
    return arrays


def check_depth(image: base.RgbdImage, camera: str, place: SourcePlace, frame: int) -> None:
    """Require some valid depth, in a plausible unit.

    Raises:
      BadEpisodeError: there is none, or it is that of no manipulation scene in metres.
    """
    depth_m = image.depth_m
    if not (depth_m > 0).any():
        raise place.error(
            f"camera {camera!r} has no valid depth (all zero, negative or NaN)",
            "Depth is planar z; record it again.",
            frame,
        )
    coarse = min(depth_m.shape) >= 16 * _PROBE
    fault = conversions.implausible_depth(depth_m[::_PROBE, ::_PROBE] if coarse else depth_m)
    if fault:
        raise place.error(f"camera {camera!r}: {fault}", "", frame)
