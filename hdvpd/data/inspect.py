"""`hdvpd data inspect`: a table of what a data set holds, and a contact sheet of its pictures."""

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import matplotlib
import numpy as np
import rich.console
import rich.table

from hdvpd.basics import files
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float, UInt8
from hdvpd.config import DataConfig
from hdvpd.data import checks, schema
from hdvpd.data.mixture import require_fit
from hdvpd.data.remote import RemotePath, locate
from hdvpd.data.robot import read_robot
from hdvpd.data.schema import EpisodeInfo
from hdvpd.data.store import Dataset

SHEET_NAME = "contact_sheet.png"
SHEET_COLUMNS = 6
SHEET_EPISODES = 4


def inspect(path: str | Path, out: Path | None = None) -> Path:
    """Print what a data set holds, write its contact sheet and return the sheet's path.

    Every array of every episode is opened and its shape and type checked; the images that are
    shown and the robot's model are read.

    Args:
      path: of the data set, or its address.
      out: folder of the sheet; by default the data set's, or the current one if that is remote.

    Raises:
      UserError: the data set is missing or damaged, or its store does not answer.
    """
    dataset = Dataset(path)
    dataset.check_arrays()
    read_robot(dataset.path)  # nothing is shown of it, but damage is found here, not in a rollout
    # Names and paths of users hold brackets and colons, which are markup and emoji to rich.
    console = rich.console.Console(markup=False, emoji=False)
    chosen = _one_per_task(dataset.episodes)[:SHEET_EPISODES]
    depths = {
        camera: np.concatenate([_read_depth(dataset, e, camera)[1] for e in chosen])
        for camera in dataset.cameras
    }
    picture = contact_sheet(dataset, chosen)
    for table in (_overview(dataset), _camera_table(dataset, depths), _episode_table(dataset)):
        console.print(table)
    remote = isinstance(dataset.path, RemotePath)
    sheet = (out or (Path() if remote else dataset.path)) / SHEET_NAME
    remedy = "Free space, or copy the data set to a folder that you may write to."
    with files.explain_write_errors(sheet, remedy):
        sheet.parent.mkdir(parents=True, exist_ok=True)
        files.replace(sheet, iio.imwrite("<bytes>", picture, extension=".png"))
    console.print(f"Contact sheet: {sheet} (rows: {_rows_of_sheet(dataset, chosen)})")
    return sheet


def inspect_all(paths: Sequence[str], out: Path | None = None) -> None:
    """Inspect one data set or several, and say of several whether a training can mix them.

    Args:
      paths: of the data sets, or their addresses.
      out: as of `inspect`; of several, every data set has a folder in it.

    Raises:
      UserError: one is missing or damaged, or none is named.
    """
    if not paths:
        raise UserError("Name the folder of a data set, or its address.")
    if len(paths) == 1:
        inspect(paths[0], out)
        return
    for number, path in enumerate(paths):
        place = locate(path)
        remote = isinstance(place, RemotePath)
        folder = (out or Path()) / f"{number + 1}-{place.name}" if out or remote else None
        inspect(path, folder)
    try:
        require_fit([Dataset(path) for path in paths], DataConfig(path=tuple(paths)))
    except UserError as error:
        print(f"Not to be mixed in one training as they are. {error}")
    else:
        print("A training can mix them: --data.path " + " ".join(paths))


def contact_sheet(
    dataset: Dataset, episodes: Sequence[EpisodeInfo]
) -> UInt8[np.ndarray, "rows columns 3"]:
    """Lay out frames of episodes: for each episode and camera a row of colour and one of depth.

    Returns:
      One image; near is bright in the rows of depth, and invalid depth is black.
    """
    rows = []
    for episode in episodes:
        for camera in dataset.cameras:
            frames, depth_m = _read_depth(dataset, episode, camera)
            rgb = _read_frames(dataset, episode, f"cameras/{camera}/rgb", frames)
            rows += [np.concatenate(list(rgb), axis=1)]
            rows += [np.concatenate(list(_paint_depth(depth_m)), axis=1)]
    width = max(row.shape[1] for row in rows)
    padded = [np.pad(row, ((0, 2), (0, width - row.shape[1]), (0, 0))) for row in rows]
    return np.concatenate(padded)


def _one_per_task(episodes: Sequence[EpisodeInfo]) -> list[EpisodeInfo]:
    first: dict[str, EpisodeInfo] = {}
    for episode in episodes:
        first.setdefault(episode.task, episode)
    return list(first.values())


def _read_depth(
    dataset: Dataset, episode: EpisodeInfo, camera: str
) -> tuple[np.ndarray, Float[np.ndarray, "f h w"]]:
    """Read depth [m] of the frames on the sheet; 0 is invalid."""
    frames = np.unique(np.linspace(0, episode.length - 1, SHEET_COLUMNS).round().astype(int))
    depth = _read_frames(dataset, episode, f"cameras/{camera}/depth", frames).astype(np.float32)
    valid = np.isfinite(depth) & (depth > 0)
    for row, frame in zip(valid, frames, strict=True):
        place = checks.Place(dataset.path, episode.number, int(frame))
        checks.check_depth(place, camera, row[None])
    unit = np.float32(dataset.info.cameras[camera].depth_unit_m)
    return frames, np.where(valid, depth * unit, np.float32(0))


def _read_frames(
    dataset: Dataset, episode: EpisodeInfo, name: str, frames: np.ndarray
) -> np.ndarray:
    """Read some frames of an array, one by one: the whole of a long episode fills the memory."""
    return np.concatenate([dataset.read(episode.number, name, int(f), 1) for f in frames])


def _paint_depth(depth_m: Float[np.ndarray, "f h w"]) -> UInt8[np.ndarray, "f h w 3"]:
    valid = depth_m > 0
    low, high = np.percentile(depth_m[valid], [1, 80])
    shade = 1 - (depth_m - low) / max(high - low, 1e-6)
    color = matplotlib.colormaps["viridis"](np.clip(shade, 0, 1))[..., :3]
    return (255 * np.where(valid[..., None], color, 0)).astype(np.uint8)


def _overview(dataset: Dataset) -> rich.table.Table:
    info = dataset.info
    low, high = np.array(info.workspace_min), np.array(info.workspace_max)
    source: Mapping[str, Any] = info.raw.get("source", {})
    lengths = [e.length for e in dataset.episodes]
    frames = sorted({min(lengths), max(lengths)})
    size = "not looked up: it lies in a remote store"
    if not isinstance(dataset.path, RemotePath):
        stored = sum(f.stat().st_size for f in dataset.path.rglob("*") if f.is_file())
        size = f"{stored / 1e6:.1f} MB"
    table = rich.table.Table(title=str(dataset.path), show_header=False)
    rows = {
        "identity": dataset.identity(),
        "episodes": f"{len(lengths)}, of {' to '.join(map(str, frames))} frames",
        "rate": f"{info.rate_hz:g} Hz",
        "size on disk": size,
        "licence": info.licence,
        "robot": f"{info.robot.name}: {len(info.robot.joints)} joints, {len(info.robot.links)} "
        f"links, {info.robot.skeleton.num_points} kinematic points",
        "links": dataset.links_source,
        "workspace": f"{low.tolist()} to {high.tolist()} m",
        **{f"source, {key}": str(value) for key, value in source.items()},
    }
    for key, value in rows.items():
        table.add_row(key, value)
    return table


def _camera_table(dataset: Dataset, depths: Mapping[str, np.ndarray]) -> rich.table.Table:
    table = rich.table.Table(title="cameras (depth: of the frames on the contact sheet)")
    for column in ("name", "size", "mount", "focal length", "valid depth", "depth range"):
        table.add_column(column)
    first = dataset.episodes[0].number
    for name, camera in dataset.info.cameras.items():
        intrinsics = dataset.read(first, f"cameras/{name}/intrinsics").reshape(-1, 3, 3)
        depth_m = depths[name]
        valid = depth_m[depth_m > 0]
        table.add_row(
            name,
            f"{camera.height}x{camera.width}",
            camera.mount,
            f"{intrinsics[0, 0, 0]:.1f}, {intrinsics[0, 1, 1]:.1f} px",
            f"{100 * valid.size / depth_m.size:.1f} %",
            f"{valid.min():.2f} to {valid.max():.2f} m",
        )
    return table


def _episode_table(dataset: Dataset) -> rich.table.Table:
    table = rich.table.Table(title="episodes by task")
    for column in ("task", *schema.SPLITS, "frames", "success", "positions", "targets"):
        table.add_column(column, no_wrap=True)
    by_task: dict[str, list[EpisodeInfo]] = collections.defaultdict(list)
    for episode in dataset.episodes:
        by_task[episode.task].append(episode)
    for task, episodes in by_task.items():
        judged = [e.success for e in episodes if e.success is not None]
        table.add_row(
            task,
            *(str(sum(e.split == split for e in episodes)) for split in schema.SPLITS),
            str(sum(e.length for e in episodes)),
            f"{sum(judged)} of {len(judged)}",
            ", ".join(sorted({e.joint_positions_source for e in episodes})),
            ", ".join(sorted({e.joint_targets_source for e in episodes})),
        )
    return table


def _rows_of_sheet(dataset: Dataset, episodes: Sequence[EpisodeInfo]) -> str:
    shown = ", ".join(f"episode {e.number} ({e.task})" for e in episodes)
    return f"{shown}; for each {' and '.join(dataset.cameras)}, colour then depth"
