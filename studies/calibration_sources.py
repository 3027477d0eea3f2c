"""Where the sets of the calibration study come from, beside the analytic scene itself.

Simulated ones are taken from one small data set rendered by MuJoCo; imported ones are the analytic
scene as a folder of pictures, read by the importer. Either becomes native arrays, to be damaged.
"""

import csv
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np

from hdvpd.data import writer
from hdvpd.data.arrays import LINKS, TARGET_LINKS
from hdvpd.data.importers.driver import import_dataset
from hdvpd.data.importers.sidecar import FILE_NAME
from hdvpd.data.robot import ROBOT_FILE
from hdvpd.data.simulation import synthetic
from hdvpd.data.simulation.bimanual import simulate
from hdvpd.data.store import Dataset

Arrays = dict[str, np.ndarray]
EPISODES, STEPS, SIZE = 6, 12, (96, 128)
FRACTION = 1e-3
"""Depth of imported pictures is stored in these [m], as most cameras do."""


def simulated(folder: Path) -> Dataset:
    """Return the simulated data set of the study, which is rendered once."""
    if not (folder / "dataset.json").exists():
        part = folder.with_name(f"{folder.name}-{os.getpid()}")
        simulate(part, episodes=EPISODES, steps=STEPS, size=SIZE, seed=11)
        if not folder.exists():
            part.rename(folder)
    return Dataset(folder)


def as_folder(episodes: list[Arrays], cameras: tuple[str, ...], path: Path) -> None:
    """Write recordings as people make them: pictures, a table of joints and a calibration file."""
    path.mkdir()
    names = ("shoulder", "elbow", "grip")
    first = episodes[0]
    height, width = first[f"cameras/{cameras[0]}/depth"].shape[1:]
    calibration = {
        "version": 1,
        "cameras": {
            name: {
                "image_size": [height, width],
                "intrinsics": first[f"cameras/{name}/intrinsics"].tolist(),
                "camera_to_world": first[f"cameras/{name}/camera_to_world"].tolist(),
            }
            for name in cameras
        },
        "joints": [
            {"name": n, "unit": "m" if n == "grip" else "rad", "arm": "left"} for n in names
        ],
    }
    calibration["joints"][2]["drives"] = {}
    (path / FILE_NAME).write_text(json.dumps(calibration))
    text = synthetic.robot()["model"].replace('<site name="tcp"', '<body name="tcp"')
    (path / "arm.xml").write_text(text)
    for number, arrays in enumerate(episodes):
        take = path / f"take{number}"
        take.mkdir()
        with (take / "joints.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["time_s", *names, *(f"{n}.target" for n in names)])
            both = [arrays["time_s"][:, None], arrays["robot/joint_positions"]]
            table.writerows(np.concatenate([*both, arrays["robot/joint_targets"]], axis=1).tolist())
        for name in cameras:
            for kind in ("rgb", "depth"):
                (take / name / kind).mkdir(parents=True)
            rgb, depth = (arrays[f"cameras/{name}/{kind}"] for kind in ("rgb", "depth"))
            for k, (image, metres) in enumerate(zip(rgb, depth, strict=True)):
                millimetres = (metres / FRACTION).round().astype(np.uint16)
                iio.imwrite(take / name / "rgb" / f"{k:06}.png", image)
                iio.imwrite(take / name / "depth" / f"{k:06}.png", millimetres)


def imported(
    episodes: list[Arrays], cameras: tuple[str, ...], step_s: float, path: Path
) -> Dataset:
    """Import recordings from the form in which people make them."""
    source = path.with_name("recordings")
    as_folder(episodes, cameras, source)
    import_dataset("folder", source, path, step_s=step_s, robot=source / "arm.xml")
    shutil.rmtree(source)
    return Dataset(path)


def arrays_of(
    source: Dataset, cameras: tuple[str, ...], *, model: bool
) -> Iterator[tuple[int, dict[str, Any], Arrays]]:
    """Yield number, description and arrays of every episode, of some cameras."""
    for episode in source.episodes:
        folder = writer.episode_folder(source.path, episode.number)
        names = [str(f.parent.relative_to(folder)) for f in folder.rglob("zarr.json")]
        names = [
            n
            for n in names
            if (not n.startswith("cameras/") or n.split("/")[1] in cameras)
            and (model or n not in (LINKS, TARGET_LINKS))
            and not n.startswith("truth/")
        ]
        meta = json.loads((folder / "episode.json").read_text())
        yield episode.number, meta, source.read_many(episode.number, names)


def rewrite(
    source: Dataset,
    path: Path,
    cameras: tuple[str, ...],
    episodes: int,
    model: bool,
    change: Callable[[int, Arrays], Arrays],
) -> None:
    """Write some cameras and episodes of a data set with other arrays."""
    writer.make_dataset(path)
    description = json.loads((source.path / "dataset.json").read_text())
    description["cameras"] = {n: description["cameras"][n] for n in cameras}
    description["objects"] = []
    writer.write_json(path / "dataset.json", description)
    if model and (source.path / ROBOT_FILE).exists():
        shutil.copy(source.path / ROBOT_FILE, path / ROBOT_FILE)
    for number, meta, arrays in arrays_of(source, cameras, model=model):
        if number < episodes:
            meta.pop("objects", None)
            writer.write_episode(path, number, meta, change(number, arrays))
