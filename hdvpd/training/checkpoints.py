"""Checkpoints that are complete or absent, and never silently damaged.

A checkpoint, `RUN/checkpoints/<step>/` (`hdvpd.training.checkpoint_folder`), is written aside under
a name that starts with a dot, flushed to disk and renamed, so a folder with a bare number is
complete; its digest shows whether it still is.
"""

import dataclasses
import itertools
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from hdvpd.basics.errors import UserError
from hdvpd.basics.files import explain_write_errors, sync
from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import read_toml
from hdvpd.model import Model, abstract_model
from hdvpd.training.checkpoint_folder import (
    PARAMS,
    Progress,
    Tree,
    alone,
    describe,
    fill,
    find_damage,
    named_leaves,
    parts_held,
    read_arrays,
    require_finite,
    reserve_space,
    sync_all,
    write_arrays,
)
from hdvpd.training.metrics_log import ELSEWHERE, REMEDY
from hdvpd.training.step import merge_model


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

    def copy(self, state: Any) -> Any:
        """Copy a state to numpy arrays of their own: what a device lends may be donated."""
        return jax.tree.map(lambda x: np.array(x, copy=True), jax.device_get(state))

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
        arrays = named_leaves(jax.tree.map(np.asarray, jax.device_get(state)))
        require_finite(step, arrays)
        with explain_write_errors(self.path / str(step), REMEDY):
            staging = self.path / f".saving-{step}-{os.getpid()}"
            try:
                reserve_space(staging, sum(array.nbytes for array in arrays.values()))
                write_arrays(staging, arrays, alone())
                describe(staging, arrays, progress, files or {})
                sync_all(staging)
                self.publish(staging, step)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
        return self.path / str(step)

    def publish(self, staging: Path, step: int) -> None:
        """Make a folder that is flushed to disk a step's checkpoint; drop those beyond `keep`."""
        self.set_aside(step)
        staging.rename(self.path / str(step))
        sync(self.path)
        self._drop_oldest()

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
        path, leaves = self.path / str(step), named_leaves(like)
        shardings = {name: getattr(leaf, "sharding", None) for name, leaf in leaves.items()}
        spread = {k: s for k, s in shardings.items() if s and not s.is_fully_addressable}
        arrays = read_arrays(path, where=spread)
        return fill(like, arrays, path), step, json.loads((path / "progress.json").read_text())

    def verify(self, step: int, state: Any) -> None:
        """Read a checkpoint back and compare it with what was to be saved and is in this process.

        Raises:
          UserError: it differs.
        """
        path = self.path / str(self.sound_step(step))
        read = read_arrays(path)
        for name, array in named_leaves(state).items():
            for place, part in parts_held(array):
                if part.tobytes() != np.asarray(read[name])[place].tobytes():
                    raise UserError(
                        f"{name} in {path} does not read back as it was written, so this disk "
                        f"cannot be trusted with checkpoints. Choose {ELSEWHERE}."
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
        read = read_arrays(path, ["params"])
        return fill(like, {name.removeprefix(PARAMS): x for name, x in read.items()}, path)

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
            f"backup, or train again in {ELSEWHERE}."
        )

    def _drop_oldest(self) -> None:
        for step in self.steps()[: -self.keep]:
            # Renamed first: a process killed while deleting must not leave a damaged checkpoint.
            doomed = self.path / f".deleting-{step}-{os.getpid()}"
            (self.path / str(step)).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def load_model(
    run_dir: Path | str, step: int | None = None, *, stochastic: bool | None = None
) -> tuple[Model, Config, SceneSpec, int]:
    """Build the model of a run with trained parameters, by default of the newest sound checkpoint.

    Args:
      run_dir: folder of the run.
      step: of the checkpoint.
      stochastic: `model.stochastic`, which no parameter depends on; None takes the run's.

    Returns:
      The model, its configuration, its scene, and the checkpoint's step.

    Raises:
      UserError: it is no run folder, has no such or no sound checkpoint, or cannot be stochastic.
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
    if stochastic is not None:
        kind = dataclasses.replace(config.model, stochastic=stochastic)
        config = dataclasses.replace(config, model=kind)
    graphdef, shapes = nnx.split(abstract_model(config, scene))
    params = store.restore_params(step, nnx.to_pure_dict(shapes))
    return merge_model(graphdef, params), config, scene, step


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
            f"model take {needed / 2**20:.1f} MiB. Free some space, or choose "
            f"{ELSEWHERE}."
        )
