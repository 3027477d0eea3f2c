"""The list of episodes of a LeRobot data set, with the files and times where their parts are."""

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hdvpd.basics.errors import UserError
from hdvpd.data.importers import base
from hdvpd.data.importers.faults import diagnosis, fault, reason
from hdvpd.data.importers.lerobot_info import Info
from hdvpd.data.importers.parquet import open_parquet

_SPLITS = {"train": "train", "val": "validation", "valid": "validation",
           "validation": "validation", "test": "test"}  # fmt: skip
_WHERE = ("chunk_index", "file_index", "from_timestamp")
_V3_COLUMNS = ("episode_index", "length", "data/chunk_index", "data/file_index")


@dataclass(frozen=True)
class Clip:
    """Where the frames of an episode are.

    Attributes:
      file: the video.
      start_s: time of the first frame in it [s].
    """

    file: Path
    start_s: float


@dataclass(frozen=True)
class LeRobotEpisode(base.SourceEpisode):
    """An episode and where its parts are; `file` is the table.

    Attributes:
      index: LeRobot's number of it.
      length: frames.
      clips: by video feature.
    """

    index: int = 0
    length: int = 0
    clips: Mapping[str, Clip] = field(default_factory=dict)


def list_episodes(info: Info) -> tuple[LeRobotEpisode, ...]:
    """List the episodes by number.

    Raises:
      UserError: the list is missing or damaged, or holds none, or one twice.
    """
    records = _records_v3(info) if info.version == 3 else _records_v2(info)
    if not records:
        raise UserError(f"{info.path}: its meta folder lists no episodes; download it again.")
    records = sorted(records, key=lambda record: record.index)
    for record, following in itertools.pairwise(records):
        if record.index == following.index:
            raise UserError(f"{info.path}: its meta folder lists episode {record.index} twice.")
    split = _splits(info)
    return tuple(replace(record, split=split(record.index)) for record in records)


def _splits(info: Info) -> Callable[[int], str]:
    """Read splits such as {"train": "0:8", "val": "8:10"}; a single one says nothing."""
    ranges = []
    for name, text in info.splits.items():
        found = re.fullmatch(r"(\d+):(\d+)", str(text))
        if found and name in _SPLITS:
            ranges.append((int(found[1]), int(found[2]), _SPLITS[name]))

    def split(index: int) -> str:
        inside = [name for begin, end, name in ranges if begin <= index < end]
        return inside[0] if len(ranges) > 1 and inside else ""

    return split


def _records_v3(info: Info) -> list[LeRobotEpisode]:
    folder = info.path / "meta" / "episodes"
    files = sorted(folder.glob("*/*.parquet"))
    if not files:
        raise UserError(f"{folder} holds no Parquet files; download the data set again.")
    wanted = (*_V3_COLUMNS, *(f"videos/{key}/{w}" for key in info.videos for w in _WHERE))
    records: list[LeRobotEpisode] = []
    for file in files:
        with open_parquet(file) as table:
            columns = [table.numbers(name)[:, 0] for name in wanted]
            tasks = table.read("tasks")
        for *row, task in zip(*columns, tasks, strict=True):
            records.append(_record_v3(info, dict(zip(wanted, row, strict=True)), _task(task)))
    return records


def _record_v3(info: Info, own: Mapping[str, float], task: str) -> LeRobotEpisode:
    index = int(own["episode_index"])

    def clip(key: str) -> Clip:
        chunk, number, start_s = (own[f"videos/{key}/{name}"] for name in _WHERE)
        video = info.video_file(video_key=key, chunk_index=int(chunk), file_index=int(number))
        return Clip(video, float(start_s))

    return LeRobotEpisode(
        name=f"episode_{index:06d}",
        file=info.data_file(
            chunk_index=int(own["data/chunk_index"]), file_index=int(own["data/file_index"])
        ),
        task=task,
        index=index,
        length=int(own["length"]),
        clips={key: clip(key) for key in info.videos},
    )


def _records_v2(info: Info) -> list[LeRobotEpisode]:
    file = info.path / "meta" / "episodes.jsonl"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise fault(file, None, f"it cannot be read ({reason(error)})") from error
    records = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            index, length, tasks = int(raw["episode_index"]), int(raw["length"]), raw.get("tasks")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            verdict = "is no JSON object with episode_index and length"
            wrong = diagnosis(file, verdict, name=f"line {number + 1}")
            raise fault(file, None, *wrong) from error
        place = {"episode_chunk": index // info.chunk_size, "episode_index": index}
        records.append(
            LeRobotEpisode(
                name=f"episode_{index:06d}",
                file=info.data_file(**place),
                task=_task(tasks),
                index=index,
                length=length,
                # A file per episode: the table's clock is the video's.
                clips={
                    key: Clip(info.video_file(video_key=key, **place), 0.0) for key in info.videos
                },
            )
        )
    return records


def _task(tasks: Any) -> str:
    return str(tasks[0]) if isinstance(tasks, Sequence) and tasks else "unknown"
