"""The JSON files of a data set as plain values: one of them, all episodes', and their index.

`episodes.json` holds every episode.json in one file. A remote store is not searched for episodes
(over HTTP it cannot be), so there the index says which there are; `hdvpd data index` writes it
beside the local data, where it is never read.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hdvpd.basics import sealed
from hdvpd.basics.errors import UserError
from hdvpd.data import writer
from hdvpd.data.remote import RemotePath, require_local

INDEX = "episodes.json"
FORMAT, VERSION = "hdvpd-episodes", 1


def read_json(file: Path) -> Any:
    """Read a JSON file of a data set, local or remote.

    Raises:
      UserError: it is missing or damaged, or its store does not answer.
    """
    try:
        return sealed.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"{file} is missing; restore it, or delete the folder {file.parent}."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{file} cannot be read ({error}); restore it from a copy, or write it again."
        ) from error


def episode_files(path: Path) -> Iterator[tuple[int, Path, Any]]:
    """Read every finished episode's episode.json.

    Args:
      path: of the data set.

    Yields:
      Number, file and its decoded content, by ascending number.

    Raises:
      UserError: one is damaged; or a remote data set has no index, or a damaged one.
    """
    if isinstance(path, RemotePath):
        contents = read_index(path)
        for number in sorted(contents):
            yield number, path / INDEX, contents[number]
        return
    for number in writer.finished_episodes(path):
        file = writer.episode_folder(path, number) / "episode.json"
        yield number, file, read_json(file)


def read_index(path: Path) -> dict[int, Any]:
    """Read the index of a data set.

    Returns:
      Decoded contents of the files episode.json, by number.

    Raises:
      UserError: there is none, or it is damaged.
    """
    file = path / INDEX
    write_again = f"Run `hdvpd data index DIR` on a local copy and put {INDEX} beside dataset.json."
    if not file.is_file():
        raise UserError(
            f"{path} has no {INDEX}, which says what episodes there are: a remote store is not "
            f"searched. {write_again}"
        )
    raw = read_json(file)
    try:
        if raw["format"] != FORMAT or raw["version"] != VERSION:
            raise ValueError(f"format {raw['format']!r}, version {raw['version']!r}")
        episodes: Mapping[str, Any] = raw["episodes"]
        wrong = next((name for name in episodes if not re.fullmatch(r"\d{6}", name)), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} is no episode's folder")
        return {int(name): content for name, content in episodes.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error!r}. {write_again}") from error


def write_index(path: Path) -> int:
    """Write the index of a local data set and return the number of its episodes.

    Raises:
      UserError: the data set is remote or damaged, or the disk is full or not writable.
    """
    require_local(path)
    contents = {f"{number:06d}": content for number, _, content in episode_files(path)}
    index = {"format": FORMAT, "version": VERSION, "episodes": contents}
    writer.write_json(path / INDEX, index)
    return len(contents)
