"""Speed and memory of `hdvpd data import`: two cameras, every frame kept.

Writes recordings of a textured scene in four layouts (raw arrays, gzip-compressed arrays, JPEG, and
LeRobot's: AV1 colours, lossless HEVC depth), imports each in a process of its own and prints frames
per second of wall-clock and of CPU time (all threads together, so it is the rate per core) and the
peak memory. LeRobot's videos are also decoded by PyAV alone and by the importer alone, in one
process. A frame is one moment: two colour and two depth images. `--long` imports ever longer
episodes, whose memory must level off.

Run: python benchmarks/importing.py [--size 128x128] [--frames 400] [--formats lerobot] [--long]
"""

import argparse
import concurrent.futures
import io
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from hdvpd.data.importers.base import Options
from hdvpd.data.importers.driver import import_dataset
from hdvpd.data.importers.lerobot import LeRobotSource
from studies.costs import peak_resident_bytes

RATE_HZ = 20.0
CAMERAS = ("front", "side")


def pictures(size: tuple[int, int], frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Return colours and depth [m] that compress about as well as those of a simulator."""
    rng = np.random.default_rng(0)
    coarse = rng.uniform(40, 220, (12, 12, 3)).astype(np.uint8)
    smooth = Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    texture = np.asarray(smooth)
    noise = rng.integers(-4, 5, (*size, 3))
    base = np.clip(texture + noise, 0, 255).astype(np.uint8)
    slope = np.linspace(0.6, 1.4, size[0])[:, None] + 0.1 * np.sin(np.arange(size[1]) / 9)[None]
    shift = range(frames)
    rgb = np.stack([np.roll(base, k, axis=1) for k in shift])
    return rgb, np.stack([np.roll(slope, k, axis=1) for k in shift])


def calibration(size: tuple[int, int], frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Return intrinsics and the OpenCV world-to-camera pose of a camera that looks down."""
    intrinsics = np.array([[size[1], 0, size[1] / 2], [0, size[1], size[0] / 2], [0, 0, 1.0]])
    pose = np.diag([1.0, -1.0, -1.0, 1.0])
    pose[2, 3] = 1.0
    return np.tile(intrinsics, (frames, 1, 1)), np.tile(pose, (frames, 1, 1))


def write_robomimic(path: Path, size: tuple[int, int], frames: int) -> tuple[Path, dict[str, Any]]:
    """Write raw arrays."""
    rgb, depth = pictures(size, frames)
    intrinsics, pose = calibration(size, 1)
    camera = {"intrinsics": intrinsics[0].tolist(), "extrinsics": np.linalg.inv(pose[0]).tolist()}
    file = path / "demos.hdf5"
    with h5py.File(file, "w") as stream:
        stream.require_group("data").attrs["env_args"] = '{"env_name": "Bench"}'
        demo = stream.create_group("data/demo_0")
        demo.attrs["camera_info"] = str(dict.fromkeys(CAMERAS, camera)).replace("'", '"')
        demo["obs/robot0_joint_pos"] = np.zeros((frames, 7))
        demo["obs/robot0_eef_pos"] = np.zeros((frames, 3))
        demo["obs/robot0_eef_quat"] = np.tile([0.0, 0, 0, 1], (frames, 1))
        for name in CAMERAS:
            demo[f"obs/{name}_image"] = rgb
            demo[f"obs/{name}_depth"] = depth[..., None].astype(np.float32)
    return file, {}


def write_maniskill(path: Path, size: tuple[int, int], frames: int) -> tuple[Path, dict[str, Any]]:
    """Write arrays compressed with gzip, as ManiSkill does."""
    rgb, depth = pictures(size, frames)
    file = path / "trajectory.rgbd.h5"
    with h5py.File(file, "w") as stream:
        root = stream.create_group("traj_0")
        root["obs/agent/qpos"] = np.zeros((frames, 9), np.float32)
        root["obs/extra/tcp_pose"] = np.tile([0.0, 0, 0, 1, 0, 0, 0], (frames, 1))
        for name in CAMERAS:
            data = root.create_group(f"obs/sensor_data/{name}")
            options: Any = {"compression": "gzip", "compression_opts": 5}
            data.create_dataset("rgb", data=rgb, **options)
            data.create_dataset("depth", data=(1000 * depth[..., None]).astype(np.int16), **options)
            _write_sapien(root.create_group(f"obs/sensor_param/{name}"), size, frames)
    return file, {}


def write_robotwin(path: Path, size: tuple[int, int], frames: int) -> tuple[Path, dict[str, Any]]:
    """Write colours as JPEG and depth as float64 millimetres."""
    rgb, depth = pictures(size, frames)
    encoded = [_jpeg(picture) for picture in rgb]
    file = path / "episode0.hdf5"
    with h5py.File(file, "w") as stream:
        stream["joint_action/left_arm"] = np.zeros((frames, 6))
        stream["joint_action/left_gripper"] = np.zeros(frames)
        stream["endpose/left_endpose"] = np.tile([0.0, 0, 0, 1, 0, 0, 0], (frames, 1))
        for name in CAMERAS:
            group = stream.create_group(f"observation/{name}")
            group.create_dataset("rgb", data=encoded, dtype=f"S{max(map(len, encoded))}")
            group["depth"] = 1000.0 * depth
            _write_sapien(group, size, frames)
    return file, {"rate_hz": RATE_HZ}


def write_lerobot(path: Path, size: tuple[int, int], frames: int) -> tuple[Path, dict[str, Any]]:
    """Write videos with the codecs and key frames of LeRobot's own writer."""
    rgb, depth = pictures(size, frames)
    intrinsics, pose = calibration(size, 1)
    root = path / "lerobot"
    features: dict[str, Any] = {"observation.state": {"dtype": "float32", "shape": [3]}}
    names = ["tool.x", "tool.y", "tool.z"]
    features["observation.state"]["names"] = names
    codes = np.rint(4095 * (np.log(depth + 3.5) - np.log(3.51)) / np.log(13.5 / 3.51))
    about = {"is_depth_map": True, "video.depth_min": 0.01, "video.depth_max": 10.0,
             "video.shift": 3.5, "video.use_log": True}  # fmt: skip
    for name in CAMERAS:
        key = f"observation.images.{name}"
        features[key] = {"dtype": "video", "shape": [*size, 3]}
        features[f"{key}_depth"] = {"dtype": "video", "shape": [*size, 1], "info": about}
        _write_video(root, key, rgb, "libsvtav1", "yuv420p", {"g": "2", "crf": "30"})
        options = {"g": "2", "x265-params": "lossless=1:log-level=none"}
        _write_video(root, f"{key}_depth", codes.astype("<u2"), "libx265", "gray12le", options)
    (root / "meta").mkdir()
    (root / "data").mkdir()
    info = {"codebase_version": "v2.1", "fps": RATE_HZ, "features": features,
            "data_path": "data/{episode_index:06d}.parquet",
            "video_path": "videos/{video_key}/{episode_index:06d}.mp4"}  # fmt: skip
    (root / "meta/info.json").write_text(json.dumps(info))
    (root / "meta/episodes.jsonl").write_text(json.dumps({"episode_index": 0, "length": frames}))
    camera = {"image_size": size, "intrinsics": intrinsics[0].tolist(),
              "camera_to_world": np.linalg.inv(pose[0]).tolist()}  # fmt: skip
    sidecar = {"version": 1, "cameras": dict.fromkeys(CAMERAS, camera),
               "end_effectors": [{"name": "tool"}]}  # fmt: skip
    (root / "hdvpd_calibration.json").write_text(json.dumps(sidecar))
    rows = np.arange(frames)
    columns = {"observation.state": [[0.0, 0.0, 0.0]] * frames, "timestamp": rows / RATE_HZ,
               "frame_index": rows, "episode_index": 0 * rows}  # fmt: skip
    pq.write_table(pa.table(columns), root / "data/000000.parquet")
    return root, {}


def _write_video(
    root: Path, key: str, pictures: np.ndarray, codec: str, pixels: str, options: dict[str, str]
) -> None:
    file = root / "videos" / key / "000000.mp4"
    file.parent.mkdir(parents=True)
    with av.open(str(file), "w") as container:
        stream: Any = container.add_stream(codec, int(RATE_HZ), options)
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = pixels
        for picture in pictures:
            if picture.ndim == 3:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), "rgb24")
            else:
                frame = av.VideoFrame(picture.shape[1], picture.shape[0], pixels)
                padded = np.zeros((len(picture), frame.planes[0].line_size // 2), "<u2")
                padded[:, : picture.shape[1]] = picture
                frame.planes[0].update(padded.tobytes())
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def decode_by_pyav(source: Path) -> int:
    """Decode all videos one after the other to colours and codes, as PyAV's users do."""
    decoded = 0
    for file in sorted(source.glob("videos/*/*.mp4")):
        with av.open(str(file)) as container:
            for frame in container.decode(video=0):
                _as_array(frame, file)
                decoded += 1
    return decoded // (2 * len(CAMERAS))


def decode_by_seeking(source: Path) -> int:
    """Seek before every frame, as random access such as LeRobot's own reader does."""
    decoded = 0
    for file in sorted(source.glob("videos/*/*.mp4")):
        with av.open(str(file)) as container:
            stream: Any = container.streams.video[0]
            for k in range(stream.frames):
                container.seek(round(k / RATE_HZ / stream.time_base), stream=stream)
                shown: Any = container.decode(stream)
                _as_array(next(f for f in shown if f.time > (k - 0.5) / RATE_HZ), file)
                decoded += 1
    return decoded // (2 * len(CAMERAS))


def _as_array(frame: Any, file: Path) -> np.ndarray:
    if not file.parent.name.endswith("_depth"):
        return frame.to_ndarray(format="rgb24")
    plane = frame.planes[0]
    return np.frombuffer(plane, "<u2").reshape(-1, plane.line_size // 2)[:, : frame.width]


def decode_by_importer(source: Path) -> int:
    """Decode all videos to colours and metres, as the importer does."""
    opened = LeRobotSource(source, Options())
    (episode,) = opened.episodes()
    with opened.open(episode) as recording:
        return sum(1 for _ in recording.frames(range(len(recording.time_s))))


DECODERS = {"in order": decode_by_pyav, "seeking": decode_by_seeking,
            "importer": decode_by_importer}  # fmt: skip


def measure_decoding(source: Path, repeats: int) -> list[tuple[str, int, float, float]]:
    """Decode by turns; return the best seconds of wall-clock and of CPU time of each."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for _ in range(repeats):
        for name, decode in DECODERS.items():
            start = time.perf_counter(), time.process_time()
            frames = decode(source)
            took = time.perf_counter() - start[0], time.process_time() - start[1]
            found.setdefault(name, []).append((frames, *took))
    return [
        (name, runs[0][0], min(r[1] for r in runs), min(r[2] for r in runs))
        for name, runs in found.items()
    ]


def _write_sapien(group: Any, size: tuple[int, int], frames: int) -> None:
    intrinsics, pose = calibration(size, frames)
    group["intrinsic_cv"], group["extrinsic_cv"] = intrinsics, pose[:, :3]


def _jpeg(picture: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "JPEG", quality=95)
    return stream.getvalue()


WRITERS: dict[str, Callable[[Path, tuple[int, int], int], tuple[Path, dict[str, Any]]]] = {
    "robomimic": write_robomimic,
    "maniskill": write_maniskill,
    "robotwin": write_robotwin,
    "lerobot": write_lerobot,
}


def measure(name: str, source: Path, options: dict[str, Any], repeats: int) -> tuple[float, ...]:
    """Import; return the best seconds of wall-clock and of CPU time, and the peak memory [MiB]."""
    wall, cpu = [], []
    for k in range(repeats):
        start = time.perf_counter(), time.process_time()
        out = source.parent / f"out{k}"
        import_dataset(name, source, out, step_s=1 / RATE_HZ, **options)
        wall.append(time.perf_counter() - start[0])
        cpu.append(time.process_time() - start[1])
    return min(wall), min(cpu), peak_resident_bytes() / 2**20


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function where nothing else counts towards its peak memory."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="128x128")
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--formats", default=",".join(WRITERS))
    parser.add_argument("--long", action="store_true")
    arguments = parser.parse_args()
    height, width = map(int, arguments.size.split("x"))
    lengths = [250, 1000, 2000] if arguments.long else [arguments.frames]
    rows, decoding = [], []
    for name in arguments.formats.split(","):
        for frames in lengths:
            with tempfile.TemporaryDirectory() as folder:
                size = (height, width)
                source, options = in_own_process(WRITERS[name], Path(folder), size, frames)
                if name == "lerobot":
                    decoding += in_own_process(measure_decoding, source, arguments.repeats)
                rows.append(
                    (
                        name,
                        frames,
                        *in_own_process(measure, name, source, options, arguments.repeats),
                    )
                )
    print(f"\n{'format':10} {'frames':>6} {'frames/s':>9} {'per core':>9} {'peak MiB':>9}")
    for name, frames, wall, cpu, peak in rows:
        print(f"{name:10} {frames:6d} {frames / wall:9.0f} {frames / cpu:9.0f} {peak:9.0f}")
    if decoding:
        print("\nLeRobot's videos, decoding only: PyAV in order, PyAV seeking, the importer")
    for name, frames, wall, cpu in decoding:
        print(f"{name:10} {frames:6d} {frames / wall:9.0f} {frames / cpu:9.0f}")


if __name__ == "__main__":
    main()
