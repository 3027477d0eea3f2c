"""The folder of one checkpoint: its files, how they are written and read, and their digest.

- `params/`: the model's parameters (Orbax), all that inference loads;
- `train_state/`: everything else of the train state (Orbax): optimiser, step, counters;
- `arrays.json`: name, shape and dtype of every array;
- `progress.json`: step, position in the data, metrics not yet logged, identity of the data set;
- `config.toml`, `scene.json`: how to build the model again;
- `digest.json`: SHA-256 of every other file.

Arrays are saved as a flat dictionary from path to array: no flax or optax object reaches the disk,
so a change of library does not break old checkpoints, and they restore on any device.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Sharding

from hdvpd.basics.errors import UserError
from hdvpd.basics.files import sync

Tree = TypeVar("Tree")
Progress = dict[str, Any]

PARAMS = "params/"
"""The names of parameters begin with this."""
_ITEMS = ("params", "train_state")
DIGEST = "digest.json"
_RESERVE = 1 << 18
"""Bytes that the indices of a checkpoint take beside its arrays, with room to spare."""


def find_damage(path: Path) -> str | None:
    """Compare a checkpoint with its digest.

    Returns:
      What is wrong, naming the file; None if every byte is as written.
    """
    try:
        digests = json.loads((path / DIGEST).read_text())["sha256"]
        for name, digest in digests.items():
            if not (path / name).is_file():
                return f"{name} is missing"
            if _sha256(path / name) != digest:
                return f"{name} has changed since it was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{DIGEST} cannot be read: {error}"
    return None


def digest(path: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in a checkpoint's folder but of the digest itself."""
    found = sorted(file for file in path.rglob("*") if file.is_file() and file.name != DIGEST)
    return {file.relative_to(path).as_posix(): _sha256(file) for file in found}


def digest_text(digests: Mapping[str, str]) -> str:
    """Write a digest as it is kept."""
    return json.dumps({"sha256": digests}, indent=1)


def named_leaves(state: Any) -> dict[str, Any]:
    """Flatten to `path/of/leaf` -> leaf."""
    leaves, _ = jax.tree.flatten_with_path(state)
    return {_name(path): leaf for path, leaf in leaves}


def parts_held(array: Any) -> list[tuple[Any, np.ndarray]]:
    """Return what this process holds of an array: places in the whole, and their values."""
    if not isinstance(array, jax.Array):
        return [(..., np.asarray(array))]
    return [(shard.index, np.asarray(shard.data)) for shard in array.addressable_shards]


def require_finite(step: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse to save what is not finite.

    Raises:
      UserError: it names the array.
    """
    for name, array in arrays.items():
        if jnp.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
            raise UserError(
                f"{name} is not finite after step {step}, so this state is not saved; earlier "
                "checkpoints are intact. Resume from one with --step and lower "
                "train.learning_rates or train.clip_norm in a new run."
            )


def alone() -> ocp.options.MultiprocessingOptions:
    """Say that this process reads or writes by itself: waiting for the others it could hang."""
    me = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix="alone"
    )


def write_arrays(
    path: Path, arrays: Mapping[str, Any], processes: ocp.options.MultiprocessingOptions
) -> None:
    """Write all arrays.

    Args:
      path: the folder.
      arrays: numpy's, or jax's, of which every process writes the part that it holds.
      processes: those that write; all must call.
    """
    for item in _ITEMS:
        tree = {name: array for name, array in arrays.items() if _item_of(name) == item}
        prefix = f"{processes.barrier_sync_key_prefix}-{item}"  # no two saves meet by one name
        options = dataclasses.replace(processes, barrier_sync_key_prefix=prefix)
        with _opened(options) as opened:
            opened.save((path / item).absolute(), args=ocp.args.StandardSave(tree))


def describe(
    path: Path, arrays: Mapping[str, Any], progress: Progress, files: Mapping[str, str]
) -> None:
    """Write what a checkpoint holds beside its arrays, and the digest of all."""
    index = {name: [list(array.shape), str(array.dtype)] for name, array in arrays.items()}
    described = {"arrays.json": json.dumps(index, indent=1),
                 "progress.json": json.dumps(progress, indent=1, allow_nan=False)}  # fmt: skip
    for name, text in {**described, **files}.items():
        (path / name).write_text(text)
    # The caller explains errors, by the checkpoint's name.
    (path / DIGEST).write_text(digest_text(digest(path)))


def sync_all(path: Path) -> None:
    """Flush a folder and everything in it to disk."""
    for entry in [*path.rglob("*"), path]:
        sync(entry)


def read_arrays(
    path: Path, items: Sequence[str] = _ITEMS, where: Mapping[str, Sharding] | None = None
) -> dict[str, Any]:
    """Read arrays back.

    Args:
      path: the folder.
      items: `params` or `train_state`; both by default.
      where: sharding of those that lie on several processes' devices, by name; a process reads its
        part of them, as a jax array, and the whole of all others, as numpy arrays.
    """
    index, read = json.loads((path / "arrays.json").read_text()), {}
    for item in items:
        template = {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=where[name])
            if where and name in where
            else np.empty(shape, np.dtype(dtype))
            for name, (shape, dtype) in index.items()
            if _item_of(name) == item
        }
        with _opened(alone()) as opened:
            args = ocp.args.StandardRestore(template)
            read |= opened.restore((path / item).absolute(), args=args)
    return read


def fill(like: Tree, arrays: Mapping[str, Any], path: Path) -> Tree:
    """Put named arrays into the structure of `like`, on its devices.

    Raises:
      UserError: they are those of another model.
    """
    leaves, treedef = jax.tree.flatten_with_path(like)
    expected = {_name(key): (tuple(leaf.shape), str(leaf.dtype)) for key, leaf in leaves}
    found = {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}
    for name in [*expected, *found]:
        if expected.get(name) != found.get(name):
            raise UserError(
                f"{path} belongs to another model: {name} is {found.get(name, 'absent')} in the "
                f"checkpoint and {expected.get(name, 'absent')} in this configuration. Use the "
                "config.toml saved beside it."
            )
    # A copy, because the train step donates its state and must own the buffers; a jax array owns
    # them and lies where it should.
    filled = [
        arrays[_name(key)]
        if isinstance(arrays[_name(key)], jax.Array)
        else jax.device_put(arrays[_name(key)], getattr(leaf, "sharding", None), may_alias=False)
        for key, leaf in leaves
    ]
    return jax.tree.unflatten(treedef, filled)


def reserve_space(path: Path, size: int) -> None:
    """Fail cleanly on a full disk before Orbax starts: its threads report every failed write.

    Args:
      path: the folder, which is made.
      size: bytes of the arrays that will be written.
    """
    path.mkdir(parents=True)
    placeholder = path / "reserved"
    with placeholder.open("wb") as file:
        if sys.platform == "linux":
            os.posix_fallocate(file.fileno(), 0, size + size // 8 + _RESERVE)
    placeholder.unlink()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _item_of(name: str) -> str:
    return "params" if name.startswith(PARAMS) else "train_state"


@contextlib.contextmanager
def _opened(processes: ocp.options.MultiprocessingOptions) -> Iterator[ocp.Checkpointer]:
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=processes)
    with contextlib.closing(ocp.Checkpointer(handler, multiprocessing_options=processes)) as opened:
        yield opened
