"""Small helpers of the data tests: damaging a data set on purpose."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from hdvpd.basics import sealed
from hdvpd.data import writer


def chunk_file(path: Path, episode: int, name: str) -> Path:
    """Return the one file that holds an array's values."""
    (file,) = writer.episode_folder(path, episode).joinpath(name).glob("c.*")
    return file


def replace_array(path: Path, episode: int, name: str, values: np.ndarray) -> None:
    """Store other values, of any shape and type, in place of an array."""
    replace_arrays(path, episode, {name: values})


def replace_arrays(path: Path, episode: int, changed: Mapping[str, np.ndarray]) -> None:
    """Store other values, of any shape and type, in place of some arrays."""
    folder = writer.episode_folder(path, episode)
    arrays = {
        str(f.parent.relative_to(folder)): tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(f.parent)}}, open=True
        )
        .result()
        .read()
        .result()
        for f in folder.rglob("zarr.json")
    }
    meta = json.loads((folder / "episode.json").read_text())
    shutil.rmtree(folder)
    writer.write_episode(path, episode, meta, arrays | dict(changed))


def edit_json(file: Path, **changes: Any) -> None:
    """Replace keys of a JSON file as a user would: without its digest; None removes a key."""
    content = json.loads(file.read_text()) | {sealed.KEY: None} | changes
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
