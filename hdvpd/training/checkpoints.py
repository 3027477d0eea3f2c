"""Checkpoints that are complete or absent, and never silently damaged.

`RUN/checkpoints/<step>/` holds:

- `params/`: the model's parameters (Orbax), all that inference loads;
- `train_state/`: everything else of the train state (Orbax): optimiser, step, counters;
- `arrays.json`: name, shape and dtype of every array;
- `progress.json`: step, position in the data, metrics not yet logged, identity of the data set;
- `config.toml`, `scene.json`: how to build the model again;
- `digest.json`: SHA-256 of every other file.

A checkpoint is written aside under a name that starts with a dot, flushed to disk and renamed, so
a folder with a bare number is complete; its digest shows whether it still is. Arrays are saved as
a flat dictionary from path to numpy array: no flax or optax object reaches the disk, so a change of
library does not break old checkpoints, and they restore on any device.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import read_toml
from hdvpd.errors import UserError
from hdvpd.model import Model
from hdvpd.reporting.files import explain_write_errors, sync
from hdvpd.training.metrics_log import REMEDY
from hdvpd.training.step import merge_model

Tree = TypeVar("Tree")
Progress = dict[str, Any]

_ITEMS = ("params", "train_state")
_DIGEST = "digest.json"
_PREFIX = "params/"
_RESERVE = 1 << 18
"""Bytes that the indices of a checkpoint take beside its arrays, with room to spare."""


class CheckpointStore:
    """The checkpoints of one run, newest last.

    Args:
      run_dir: the run folder.
      keep: how many checkpoints stay; older ones go after a newer one is safely on disk.
    """

    def __init__(self, run_dir: Path, keep: int = 1) -> None:
        """Remember where; touch nothing."""
        self.path = run_dir / "checkpoints"
        self.keep = keep

    def steps(self) -> list[int]:
        """List the steps of complete checkpoints, oldest first."""
        if not self.path.is_dir():
            return []
        return sorted(int(entry.name) for entry in self.path.iterdir() if entry.name.isdigit())

    def clean(self) -> None:
        """Remove what a killed process left half-written; for the one process that trains."""
        if self.path.is_dir():
            for entry in self.path.glob(".*"):
                shutil.rmtree(entry, ignore_errors=True)

    def save(
        self, step: int, state: Any, *, progress: Progress, files: Mapping[str, str] | None = None
    ) -> Path:
        """Write a checkpoint and drop the oldest ones beyond `keep`.

        Args:
          step: training steps done.
          state: pytree of arrays whose field `params` holds the parameters.
          progress: JSON values that say where the run stands.
          files: further text files by name.

        Returns:
          The new folder.

        Raises:
          UserError: the disk is full or not writable, or the state is not finite. Earlier
            checkpoints are untouched.
        """
        arrays = _named_arrays(state)
        _require_finite(step, arrays)
        final = self.path / str(step)
        with explain_write_errors(final, REMEDY):
            staging = self.path / f".saving-{step}-{os.getpid()}"
            try:
                _reserve_space(staging, sum(array.nbytes for array in arrays.values()))
                _write_checkpoint(staging, arrays, progress, files or {})
                self.set_aside(step)
                staging.rename(final)
                sync(self.path)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
        self._drop_oldest()
        return final

    def set_aside(self, step: int) -> Path | None:
        """Rename a checkpoint to `<step>.aside`, so that it is no longer listed nor deleted.

        Args:
          step: of the checkpoint; without one nothing happens.

        Returns:
          The new folder, if there was an old one.
        """
        old = self.path / str(step)
        if not old.exists():
            return None
        names = itertools.chain(
            [f"{step}.aside"], (f"{step}.aside-{n}" for n in itertools.count(2))
        )
        new = next(self.path / name for name in names if not (self.path / name).exists())
        old.rename(new)
        return new

    def restore(self, step: int | None, like: Tree) -> tuple[Tree, int, Progress]:
        """Read a train state back.

        Args:
          step: which checkpoint; None takes the newest sound one, warning of damaged ones.
          like: a train state of the same structure, shapes and dtypes; gives devices, too.

        Returns:
          State, its step, and the progress that was saved with it.

        Raises:
          UserError: there is no sound checkpoint, or it belongs to another model.
        """
        step = self.sound_step(step)
        path = self.path / str(step)
        arrays = {name: array for item in _ITEMS for name, array in _read_item(path, item).items()}
        return _fill(like, arrays, path), step, json.loads((path / "progress.json").read_text())

    def verify(self, step: int, state: Any) -> None:
        """Read a checkpoint back and compare it with what was to be saved.

        Raises:
          UserError: it differs.
        """
        path = self.path / str(self.sound_step(step))
        read = {name: array for item in _ITEMS for name, array in _read_item(path, item).items()}
        for name, array in _named_arrays(state).items():
            if array.tobytes() != np.asarray(read[name]).tobytes():
                raise UserError(
                    f"{name} in {self.path / str(step)} does not read back as it was written, so "
                    "this disk cannot be trusted with checkpoints. Choose another --runs-dir."
                )

    def read_origin(self, step: int) -> tuple[Config, SceneSpec, Progress]:
        """Read how a checkpoint came about: its configuration, scene and progress."""
        path = self.path / str(step)
        return (
            read_toml(path / "config.toml"),
            SceneSpec.from_dict(json.loads((path / "scene.json").read_text())),
            json.loads((path / "progress.json").read_text()),
        )

    def restore_params(self, step: int, like: Tree) -> Tree:
        """Read the parameters of a sound checkpoint; `like` and errors as in `restore`."""
        path = self.path / str(step)
        arrays = {
            name.removeprefix(_PREFIX): array for name, array in _read_item(path, "params").items()
        }
        return _fill(like, arrays, path)

    def sound_step(self, step: int | None = None) -> int:
        """Find the newest undamaged checkpoint, or check the one asked for.

        Args:
          step: the only one to consider; None considers all, newest first.

        Raises:
          UserError: it is missing or damaged, or none is sound.
        """
        steps = self.steps()
        if step is not None and step not in steps:
            raise UserError(
                f"{self.path} has no checkpoint of step {step}; it has {steps or 'none'}. Choose "
                f"one of these with --step, or leave --step out for the newest."
            )
        for candidate in reversed(steps) if step is None else [step]:
            damage = find_damage(self.path / str(candidate))
            if damage is None:
                return candidate
            if step is not None:
                raise UserError(
                    f"The checkpoint {self.path / str(step)} is damaged: {damage}. Choose another "
                    f"of {steps}, or leave --step out to take the newest sound one."
                )
            logging.getLogger("hdvpd").warning(
                "The checkpoint %s is damaged (%s); taking the one before it.",
                self.path / str(candidate),
                damage,
            )
        raise UserError(
            f"{self.path} has no sound checkpoint (found {steps or 'none'}). Copy one from a "
            "backup, or train again under another --name."
        )

    def _drop_oldest(self) -> None:
        for step in self.steps()[: -self.keep]:
            # Renamed first: a process killed while deleting must not leave a damaged checkpoint.
            doomed = self.path / f".deleting-{step}-{os.getpid()}"
            (self.path / str(step)).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def load_model(
    run_dir: Path | str, step: int | None = None
) -> tuple[Model, Config, SceneSpec, int]:
    """Build the model of a run with trained parameters, by default of the newest sound checkpoint.

    Returns:
      The model, the configuration it was trained with, its scene, and the checkpoint's step.

    Raises:
      UserError: it is no run folder, or has no such or no sound checkpoint.
    """
    path = Path(run_dir)
    if not (path / "checkpoints").is_dir():
        raise UserError(
            f"{path} is not the folder of a trained run (it has no checkpoints/). Give the path "
            "of one, such as runs/demo."
        )
    store = CheckpointStore(path)
    step = store.sound_step(step)
    config, scene, _ = store.read_origin(step)
    # Shapes are enough: initialising parameters only to replace them costs seconds.
    blank = nnx.eval_shape(lambda: Model(config, scene, rngs=nnx.Rngs(0)))
    graphdef, shapes = nnx.split(blank)
    params = store.restore_params(step, nnx.to_pure_dict(shapes))
    return merge_model(graphdef, params), config, scene, step


def find_damage(path: Path) -> str | None:
    """Compare a checkpoint with its digest.

    Returns:
      What is wrong, naming the file; None if every byte is as written.
    """
    try:
        digests = json.loads((path / _DIGEST).read_text())["sha256"]
        for name, digest in digests.items():
            if not (path / name).is_file():
                return f"{name} is missing"
            if _sha256(path / name) != digest:
                return f"{name} has changed since it was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{_DIGEST} cannot be read: {error}"
    return None


def write_digest(path: Path, write: Callable[[Path, str], object]) -> None:
    """Declare every byte in a checkpoint's folder to be as it should; `write` stores that."""
    found = sorted(file for file in path.rglob("*") if file.is_file() and file.name != _DIGEST)
    digests = {file.relative_to(path).as_posix(): _sha256(file) for file in found}
    write(path / _DIGEST, json.dumps({"sha256": digests}, indent=1))


def require_disk_space(path: Path, state: Any) -> None:
    """Check before a long run that checkpoints will fit.

    Raises:
      UserError: less is free than two checkpoints take (the newest and the one being written).
    """
    needed = 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    free = shutil.disk_usage(path).free
    if free < needed:
        raise UserError(
            f"The disk of {path} has {free / 2**20:.1f} MiB free, but two checkpoints of this "
            f"model take {needed / 2**20:.1f} MiB. Free some space, or choose another --runs-dir."
        )


def _named_arrays(state: Any) -> dict[str, np.ndarray]:
    """Flatten to `path/of/leaf` -> array on the host."""
    leaves, _ = jax.tree.flatten_with_path(state)
    host = jax.device_get([leaf for _, leaf in leaves])
    return {_name(path): np.asarray(leaf) for (path, _), leaf in zip(leaves, host, strict=True)}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _require_finite(step: int, arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        if jnp.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
            raise UserError(
                f"{name} is not finite after step {step}, so this state is not saved; earlier "
                "checkpoints are intact. Resume from one with --step and lower "
                "train.learning_rates or train.clip_norm in a new run."
            )


def _write_checkpoint(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    progress: Progress,
    files: Mapping[str, str],
) -> None:
    with contextlib.closing(_open_checkpointer()) as checkpointer:
        for item in _ITEMS:
            tree = {name: array for name, array in arrays.items() if _item_of(name) == item}
            checkpointer.save((path / item).absolute(), args=ocp.args.StandardSave(tree))
    index = {name: [list(array.shape), str(array.dtype)] for name, array in arrays.items()}
    described = {"arrays.json": json.dumps(index, indent=1),
                 "progress.json": json.dumps(progress, indent=1, allow_nan=False)}  # fmt: skip
    for name, text in {**described, **files}.items():
        (path / name).write_text(text)
    write_digest(path, Path.write_text)  # the caller explains errors, by the checkpoint's name
    for entry in [*path.rglob("*"), path]:
        sync(entry)


def _open_checkpointer() -> ocp.Checkpointer:
    """Open what this process reads or writes by alone: waiting for the others it could hang."""
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me})
    return ocp.Checkpointer(ocp.StandardCheckpointHandler(multiprocessing_options=alone),
                            multiprocessing_options=alone)  # fmt: skip


def _item_of(name: str) -> str:
    return "params" if name.startswith(_PREFIX) else "train_state"


def _read_item(path: Path, item: str) -> dict[str, np.ndarray]:
    index = json.loads((path / "arrays.json").read_text())
    template = {
        name: np.empty(shape, np.dtype(dtype))
        for name, (shape, dtype) in index.items()
        if _item_of(name) == item
    }
    with contextlib.closing(_open_checkpointer()) as opened:
        return opened.restore((path / item).absolute(), args=ocp.args.StandardRestore(template))


def _fill(like: Tree, arrays: Mapping[str, np.ndarray], path: Path) -> Tree:
    """Put named arrays into the structure of `like`, on its devices."""
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
    # A copy, because the train step donates its state and must own the buffers.
    filled = [
        jax.device_put(arrays[_name(key)], getattr(leaf, "sharding", None), may_alias=False)
        for key, leaf in leaves
    ]
    return jax.tree.unflatten(treedef, filled)


def _reserve_space(path: Path, size: int) -> None:
    """Fail cleanly on a full disk before Orbax starts: its threads report every failed write."""
    path.mkdir(parents=True)
    placeholder = path / "reserved"
    with placeholder.open("wb") as file:
        if sys.platform == "linux":
            os.posix_fallocate(file.fileno(), 0, size + size // 8 + _RESERVE)
    placeholder.unlink()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
