"""Own recordings: a folder that people can inspect by eye (docs/importing.md).

```
SOURCE/hdvpd_calibration.json            cameras, joints, robot (sidecar.py)
SOURCE/<episode>/joints.csv              time_s, a column per joint, optionally <joint>.target
SOURCE/<episode>/<cam>/rgb/000000.png    or .jpg
SOURCE/<episode>/<cam>/depth/000000.png  16 bit, millimetres unless the calibration says otherwise
SOURCE/<episode>/episode.json            optional: task, split, success
```

Row t of joints.csv belongs to the pictures numbered t.
"""

import contextlib
import csv
import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.data import schema
from hdvpd.data.importers import base, conversions, images
from hdvpd.data.importers.common import Choices, number_in
from hdvpd.data.importers.faults import SourcePlace, diagnosis
from hdvpd.data.importers.sidecar import FILE_NAME, SidecarCamera, read_sidecar

DEPTH_UNIT_M = 0.001
TABLE = "joints.csv"
_PICTURE = re.compile(r"(\d+)\.(?:png|jpe?g)", re.IGNORECASE)


class FolderSource(base.AbstractSource):
    """A folder of episodes, each with pictures and a table of joints."""

    def __init__(self, path: Path, options: base.Options) -> None:
        """Read the calibration, from the folder unless the options hold one.

        Raises:
          UserError: it is missing or damaged, or names no camera or no joint.
        """
        if options.sidecar.file == Path():
            options = dataclasses.replace(options, sidecar=read_sidecar(path / FILE_NAME))
        super().__init__(path, options)
        self._sidecar = options.sidecar
        for key, value in (("cameras", self._sidecar.cameras), ("joints", self._sidecar.joints)):
            if not value:
                raise UserError(
                    f"{self._sidecar.file} names no {key}; the folder format needs them "
                    "(docs/importing.md)."
                )

    def episodes(self) -> tuple[base.SourceEpisode, ...]:
        """List the folders that hold a joints.csv, sorted by the number in their name."""
        tables = sorted(self.path.glob(f"*/{TABLE}"), key=lambda f: number_in(f.parent.name))
        if not tables:
            raise UserError(
                f"{self.path} holds no folder with a {TABLE}: every episode is a folder with one "
                "(docs/importing.md)."
            )
        return tuple(self._list(table.parent) for table in tables)

    def _list(self, folder: Path) -> base.SourceEpisode:
        about = _about(SourcePlace(folder, folder.name))
        success = about.get("success")
        return base.SourceEpisode(
            name=folder.name,
            file=folder,
            task=str(about.get("task", self.path.resolve().name)),
            split=str(about.get("split", "")),
            success=success if isinstance(success, bool) else None,
        )

    @contextlib.contextmanager
    def open(self, episode: base.SourceEpisode) -> Iterator[base.Recording]:
        """Read joints.csv and the first picture of every camera."""
        place = episode.place
        _check_about(place)
        table = _read_table(place, episode.file / TABLE)
        choices, frames = Choices(place, self.options), len(table["time_s"])
        names, _ = choices.cameras(dict.fromkeys(self._sidecar.cameras, ""))
        joints = self._sidecar.joints
        targets = [f"{joint.name}.target" for joint in joints]
        commanded = any(name in table for name in targets)
        yield base.Recording(
            time_s=table["time_s"],
            cameras={name: _camera(place, name, frames, choices) for name in names},
            joints=joints,
            joint_positions=_columns(place, table, [joint.name for joint in joints]),
            joint_targets=_columns(place, table, targets) if commanded else None,
            end_effectors=choices.end_effectors(functools.partial(_columns, place, table)),
            base_to_world=choices.base_to_world(),
            fields={
                "joint_positions": f"columns of {TABLE}, measured",
                "joint_targets": f"columns <joint>.target of {TABLE}" if commanded else "none",
            },
            warnings=tuple(self._left_out(episode.file)),
        )

    def _left_out(self, episode: Path) -> Iterator[str]:
        """Name the folders with pictures that belong to no camera of the calibration file."""
        known = {
            folder
            for name, camera in self._sidecar.cameras.items()
            for folder in _folders(episode, name, camera).values()
        }
        for folder, _, files in sorted(os.walk(episode)):
            if Path(folder) not in known and any(map(_PICTURE.fullmatch, files)):
                yield (
                    f"pictures in {Path(folder).relative_to(episode)} are left out: "
                    f"{self._sidecar.file.name} names no camera for them"
                )


def _camera(place: SourcePlace, name: str, frames: int, choices: Choices) -> base.Camera:
    sidecar = choices.options.sidecar
    folders = _folders(place.file, name, sidecar.cameras[name])
    rgb, depth = (
        images.numbered(
            place,
            folder,
            _PICTURE,
            frames,
            f"rows in {TABLE}",
            "Every row needs one picture, numbered from 0, and every picture one row.",
        )
        for folder in folders.values()
    )

    def shown(file: Path) -> str:
        return str(file.relative_to(place.file))

    height, width = images.decode_rgb(rgb[0], place, 0, None, shown(rgb[0])).shape[:2]
    size, channels = (height, width), choices.channels()
    unit_m = choices.depth_unit_m(name, DEPTH_UNIT_M)

    def read(rows: Sequence[int]) -> Iterator[base.RgbdImage]:
        for row in rows:
            colours = images.decode_rgb(rgb[row], place, row, size, shown(rgb[row]))
            stored = images.decode_depth(depth[row], place, row, size, shown(depth[row]))
            yield base.RgbdImage(
                images.in_rgb_order(colours, channels), conversions.metric_depth(stored, unit_m)
            )

    return base.Camera(
        choices.view(name, size, _never),
        f"rgb from {shown(folders['rgb'])}, depth from {shown(folders['depth'])} in units of "
        f"{unit_m:g} m, calibration from {sidecar.file.name}",
        read,
    )


def _folders(episode: Path, camera: str, given: SidecarCamera) -> dict[str, Path]:
    return {
        "rgb": episode / (given.rgb or f"{camera}/rgb"),
        "depth": episode / (given.depth or f"{camera}/depth"),
    }


def _never() -> base.View:
    raise AssertionError("cameras of this format come from the side-car")


def _about(place: SourcePlace) -> Mapping[str, Any]:
    """Read episode.json as far as it can be read; `_check_about` complains."""
    return _read_about(place) or {}


def _read_about(place: SourcePlace) -> Mapping[str, Any] | None:
    try:
        raw = json.loads((place.file / "episode.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return raw if isinstance(raw, Mapping) else None


def _check_about(place: SourcePlace) -> None:
    if not (place.file / "episode.json").exists():
        return
    if (about := _read_about(place)) is None:
        file = place.file / "episode.json"
        verdict = "cannot be read as a JSON object"
        raise place.error(*diagnosis(file, verdict, "Repair or remove it.", file.name))
    if about.get("split", "train") not in schema.SPLITS:
        raise place.error(
            f"episode.json has split {about['split']!r}, expected one of {', '.join(schema.SPLITS)}"
        )
    if not isinstance(about.get("success"), bool | None):
        raise place.error(f"episode.json has success {about['success']!r}, expected true or false")


def _read_table(place: SourcePlace, file: Path) -> dict[str, np.ndarray]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            header, *rows = list(csv.reader(stream)) or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise place.error(
            f"{TABLE} cannot be read ({error})", "It is text: comma separated."
        ) from error
    names = [name.strip() for name in header]
    if "time_s" not in names or len(set(names)) < len(names):
        verdict = f"has the first line {','.join(names)!r}"
        remedy = "It names every column once, among them time_s."
        raise place.error(*diagnosis(file, verdict, remedy, TABLE))
    rows = [row for row in rows if row]
    if not rows:
        raise place.error(f"{TABLE} has no rows", "It needs one row per frame.")
    values = np.zeros((len(rows), len(names)))
    for k, row in enumerate(rows):
        try:
            # One cell alone, as in a file cut off in its last row, would fill the whole row.
            for column, cell in enumerate(row if len(row) == len(names) else [""]):
                values[k, column] = float(cell)
        except ValueError as error:
            raise place.error(
                f"{TABLE} has {len(row)} cells in this row, {','.join(row)!r}, expected "
                f"{len(names)} numbers",
                "Repair the row.",
                k,
            ) from error
    return {name: values[:, k] for k, name in enumerate(names)}


def _columns(
    place: SourcePlace, table: Mapping[str, np.ndarray], names: Sequence[str]
) -> np.ndarray:
    missing = [name for name in names if name not in table]
    if missing:
        raise place.error(
            f"{TABLE} has no column {missing[0]!r}; it has {', '.join(table)}",
            "The calibration file names the joints.",
        )
    return np.stack([table[name] for name in names], axis=1)
