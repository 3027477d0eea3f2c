"""LeRobot data sets of the analytic scene, written with PyArrow and PyAV in the real layouts."""

import io
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import import_sources as sources
import numpy as np
from PIL import Image

NEAR, FAR, SHIFT = 0.01, 10.0, 3.5
STATE = [joint["name"] for joint in sources.CALIBRATION_JOINTS]
DEPTH_INFO = {"video.depth_min": NEAR, "video.depth_max": FAR, "video.shift": SHIFT}


def encode_depth(depth_m: np.ndarray, coding: str) -> np.ndarray:
    """Quantise as LeRobot's writer does, with code 0 for pixels without depth."""
    if coding == "ffv1":
        return (10_000 * depth_m).round().astype(np.uint16)
    if coding == "log":
        low, high = np.log(NEAR + SHIFT), np.log(FAR + SHIFT)
        share = (np.log(depth_m + SHIFT) - low) / (high - low)
    else:
        share = (depth_m - NEAR) / (FAR - NEAR)
    return np.where(depth_m > 0, np.rint(4095 * share).clip(0, 4095), 0).astype(np.uint16)


def write_video(
    file: Path, frames: np.ndarray, codec: str, pixel_format: str, options: dict[str, str]
) -> None:
    """Encode colours, or grey values as they are."""
    import av

    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w") as container:
        stream: Any = container.add_stream(codec, Fraction(sources.RATE), options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pixel_format
        for k, values in enumerate(frames):
            if values.ndim == 3:
                frame: Any = av.VideoFrame.from_ndarray(np.ascontiguousarray(values), "rgb24")
                frame = frame.reformat(format=pixel_format)
            else:
                frame = av.VideoFrame(values.shape[1], values.shape[0], pixel_format)
                plane = frame.planes[0]
                padded = np.zeros((values.shape[0], plane.line_size // 2), "<u2")
                padded[:, : values.shape[1]] = values
                plane.update(padded.tobytes())
            frame.pts, frame.time_base = k, 1 / Fraction(sources.RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _rgb_options(lossless: bool) -> tuple[str, str, dict[str, str]]:
    if lossless:
        return "libx264rgb", "rgb24", {"qp": "0", "preset": "ultrafast"}
    return "libx264", "yuv420p", {"crf": "5", "g": "2"}


def _depth_options(coding: str) -> tuple[str, str, dict[str, str]]:
    if coding == "ffv1":
        return "ffv1", "gray16le", {}
    params = "lossless=1:log-level=none:pools=none:frame-threads=1"
    return "libx265", "gray12le", {"x265-params": params, "preset": "ultrafast"}


def _tiff(depth_m: np.ndarray, dtype: Any) -> dict[str, Any]:
    values = depth_m.astype(np.float32)
    if dtype == np.uint16:
        values = (1000 * depth_m).round().astype(np.uint16)
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "TIFF", compression="raw")
    return {"bytes": stream.getvalue(), "path": "frame.tiff"}


def write_lerobot(
    path: Path,
    scenes: list[sources.Scene],
    version: str = "v3.0",
    coding: str = "log",
    lossless: bool = True,
    channel_first: bool = False,
    columns: str = "",
    tiff: Any = np.uint16,
) -> None:
    """Write a data set.

    Args:
      path: of it.
      scenes: episodes.
      version: v3.0, where all episodes share files, or v2.1.
      coding: of depth: log, linear, ffv1 or tiff.
      lossless: whether colours are.
      channel_first: whether info.json lists the channel first.
      columns: what the poses mean, such as "world-to-camera opengl", if calibration is in columns
        instead of the side-car.
      tiff: type of TIFF depth.
    """
    (path / "meta").mkdir(parents=True)
    suffix = "mkv" if coding == "ffv1" else "mp4"
    three = version == "v3.0"
    names = list(scenes[0].views)
    keys = [f"observation.images.{n}" for n in names]
    depth_keys = [f"{key}_depth" for key in keys]
    videos = {key: ("rgb", n) for key, n in zip(keys, names, strict=True)}
    if coding != "tiff":
        videos |= {key: ("depth_m", n) for key, n in zip(depth_keys, names, strict=True)}
    template = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}." + suffix
    if three:
        template = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}." + suffix
    for key, (kind, name) in videos.items():
        clips = [getattr(scene.views[name], kind) for scene in scenes]
        options = _rgb_options(lossless)
        if kind == "depth_m":
            clips = [encode_depth(clip, coding) for clip in clips]
            options = _depth_options(coding)
        if three:
            where = {"video_key": key, "chunk_index": 0, "file_index": 0}
            write_video(path / template.format(**where), np.concatenate(clips), *options)
        else:
            for k, clip in enumerate(clips):
                where = {"video_key": key, "episode_chunk": 0, "episode_index": k}
                write_video(path / template.format(**where), clip, *options)
    _write_tables(path, scenes, three, list(videos), columns, coding == "tiff", tiff)
    _write_info(path, scenes, version, template, coding, channel_first, bool(columns))
    if not columns:
        _write_sidecar(path, scenes[0])


def _write_tables(
    path: Path,
    scenes: list[sources.Scene],
    three: bool,
    videos: list[str],
    columns: str,
    tiff: bool,
    tiff_type: Any,
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    start, tables, episodes = 0, [], []
    for number, scene in enumerate(scenes):
        frames = np.arange(scene.frames)
        openings = np.concatenate([scene.opening[1:], scene.opening[-1:]])
        state = np.column_stack([scene.joints, scene.opening]).astype(np.float32)
        action = np.column_stack([scene.targets, openings]).astype(np.float32)
        content: dict[str, Any] = {
            "observation.state": pa.array(state.tolist(), pa.list_(pa.float32(), 3)),
            "action": pa.array(action.tolist(), pa.list_(pa.float32())),
            "timestamp": pa.array(frames / sources.RATE, pa.float32()),
            "frame_index": pa.array(frames),
            "episode_index": pa.array(np.full(scene.frames, number)),
            "index": pa.array(start + frames),
            "task_index": pa.array(np.zeros(scene.frames, np.int64)),
        }
        for name, view in scene.views.items():
            if columns:
                k = view.intrinsics
                four = [[k[0, 0], k[1, 1], k[0, 2], k[1, 2]]] * scene.frames
                poses = view.poses @ sources.FLIP_GL if "opengl" in columns else view.poses
                nested = (np.linalg.inv(poses) if "world-to" in columns else poses).tolist()
                content[f"observation.{name}_camera_intrinsics"] = pa.array(four)
                content[f"observation.{name}_camera_extrinsics"] = pa.array(nested)
            if tiff:
                pictures = [_tiff(depth, tiff_type) for depth in view.depth_m]
                content[f"observation.images.{name}_depth"] = pa.array(
                    pictures, pa.struct([("bytes", pa.binary()), ("path", pa.string())])
                )
        tables.append(pa.table(content))
        about = {"episode_index": number, "tasks": ["push the box"], "length": scene.frames}
        if three:
            about |= {"data/chunk_index": 0, "data/file_index": 0, "dataset_from_index": start,
                      "dataset_to_index": start + scene.frames}  # fmt: skip
            for key in videos:
                about |= {
                    f"videos/{key}/chunk_index": 0,
                    f"videos/{key}/file_index": 0,
                    f"videos/{key}/from_timestamp": start / sources.RATE,
                    f"videos/{key}/to_timestamp": (start + scene.frames) / sources.RATE,
                }
        episodes.append(about)
        start += scene.frames
    data = path / "data" / "chunk-000"
    data.mkdir(parents=True)
    if not three:
        lines = "".join(json.dumps(about) + "\n" for about in episodes)
        (path / "meta" / "episodes.jsonl").write_text(lines)
        for number, table in enumerate(tables):
            pq.write_table(table, data / f"episode_{number:06d}.parquet")
        return
    with pq.ParquetWriter(data / "file-000.parquet", tables[0].schema) as writer:
        for table in tables:  # a row group per episode, as LeRobot does
            writer.write_table(table)
    folder = path / "meta" / "episodes" / "chunk-000"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(episodes), folder / "file-000.parquet")


def _write_info(
    path: Path,
    scenes: list[sources.Scene],
    version: str,
    template: str,
    coding: str,
    channel_first: bool,
    columns: bool,
) -> None:
    height, width = sources.SIZE
    vector = {"dtype": "float32", "shape": [3], "names": {"motors": STATE}}
    features: dict[str, Any] = {"observation.state": vector, "action": vector}
    for name in scenes[0].views:
        shape, names = [height, width, 3], ["height", "width", "channels"]
        if channel_first:
            shape, names = [3, height, width], ["channels", "height", "width"]
        features[f"observation.images.{name}"] = {"dtype": "video", "shape": shape, "names": names}
        about: dict[str, Any] = {"is_depth_map": True}
        if coding in ("log", "linear"):
            about |= DEPTH_INFO | {"video.use_log": coding == "log", "depth_unit": "mm"}
        features[f"observation.images.{name}_depth"] = {
            "dtype": "image" if coding == "tiff" else "video",
            "shape": [height, width, 1],
            "names": ["height", "width", "channels"],
            "info": about,
        }
        if columns:
            for kind, shape in (("intrinsics", [4]), ("extrinsics", [4, 4])):
                key = f"observation.{name}_camera_{kind}"
                features[key] = {"dtype": "float32", "shape": shape, "names": None}
    three = version == "v3.0"
    table = "file-{file_index:03d}" if three else "episode_{episode_index:06d}"
    chunk = "chunk_index" if three else "episode_chunk"
    info = {
        "codebase_version": version,
        "robot_type": "arm",
        "total_episodes": len(scenes),
        "chunks_size": 1000,
        "fps": int(sources.RATE),
        "splits": {"train": f"0:{len(scenes)}"},
        "data_path": f"data/chunk-{{{chunk}:03d}}/{table}.parquet",
        "video_path": template,
        "features": features,
    }
    (path / "meta" / "info.json").write_text(json.dumps(info))


def _write_sidecar(path: Path, scene: sources.Scene) -> None:
    cameras = {
        name: {
            "image_size": list(sources.SIZE),
            "intrinsics": view.intrinsics.tolist(),
            "camera_to_world": view.poses[0].tolist(),
        }
        for name, view in scene.views.items()
    }
    content = {"version": 1, "cameras": cameras, "joints": sources.CALIBRATION_JOINTS}
    (path / "hdvpd_calibration.json").write_text(json.dumps(content))
