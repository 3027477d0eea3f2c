"""What recordings teach a model before its first step, kept from one start to the next.

Looking at recordings takes a quarter of a minute for the demo, as long as all the rest of a start
whose programs are kept. So what a start learned is kept beside its programs
(`kernels/kept_programs.py`), and used by the next one with the same data, settings, versions and
code of hdvpd; as nothing is random but by the seed, it would have learned the same.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.basics import files
from hdvpd.config import Config
from hdvpd.config.experiments import flatten
from hdvpd.data.store import Dataset
from hdvpd.kernels.kept_programs import kept_beside
from hdvpd.training.identity import learn_identity
from hdvpd.training.run_folder import library_versions
from hdvpd.training.shadow import learn_shadow
from hdvpd.training.step import Params, TrainState, merge_model
from hdvpd.training.tracking import learn_tracking

KEPT = 32
"""Starts of which it is kept; the least recently used goes first."""
_PACKAGE = Path(__file__).parents[1]
_DECIDES = ("data.", "model.", "render.far", "train.seed", "train.identity_steps", "train.horizon")
"""Beginnings of the keys of a configuration that decide what is learned."""


def taught(
    config: Config, graphdef: nnx.GraphDef, state: TrainState, dataset: Dataset
) -> TrainState:
    """Return the state of a model that has learned what recordings teach without a rollout.

    Args:
      config: of the run.
      graphdef: definition of the model.
      state: as it was made.
      dataset: whose training episodes are looked at.

    Raises:
      UserError: what is stored is damaged or impossible.
    """
    file = _kept_file(config, dataset)
    kept = None if file is None else _read(file)
    if kept is not None:
        print(f"taught   by an earlier start with the same data and settings: {file}")
        return _started_at(state, _with(state.params, kept))
    model = merge_model(graphdef, state.params)
    learn_tracking(model, config, dataset)
    learn_identity(model, config, dataset)
    learn_shadow(model, config, dataset)
    params = nnx.to_pure_dict(nnx.state(model))
    learned = {} if file is None else _learned(state.params, params)
    if file is not None and learned:
        _write(file, learned)
    return _started_at(state, params)


def _started_at(state: TrainState, params: Params) -> TrainState:
    # A training step donates its state, so the average and what it is of are arrays of their own.
    iterate = None if state.iterate is None else jax.tree.map(jnp.copy, params)
    return dataclasses.replace(state, params=params, iterate=iterate)


def _kept_file(config: Config, dataset: Dataset) -> Path | None:
    """Name the file after all that decides what is learned; None where nothing is kept.

    When data were written is not in their identity, and of remote ones it is not known.
    """
    folder = kept_beside("taught")
    written = [Path(path) / "dataset.json" for path in config.data.paths]
    if folder is None or not all(file.is_file() for file in written):
        return None
    described = {
        "data": [dataset.identity(), *(file.stat().st_mtime_ns for file in written)],
        "settings": {k: v for k, v in flatten(config).items() if k.startswith(_DECIDES)},
        "versions": library_versions(),
    }
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode())
    for source in sorted(_PACKAGE.rglob("*")):
        if source.suffix in (".py", ".cpp", ".h"):
            digest.update(source.read_bytes())
    return folder / f"{digest.hexdigest()[:32]}.npz"


def _learned(before: Any, after: Any) -> dict[str, np.ndarray]:
    """Return the leaves that are no longer what they were."""
    old = dict(jax.tree.leaves_with_path(before))
    new = ((path, np.asarray(leaf)) for path, leaf in jax.tree.leaves_with_path(after))
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in new
        if not np.array_equal(leaf, np.asarray(old[path]))
    }


def _with(params: Any, learned: dict[str, np.ndarray]) -> Any:
    return jax.tree.map_with_path(
        lambda path, leaf: jax.numpy.asarray(learned.get(jax.tree_util.keystr(path), leaf)), params
    )


def _read(file: Path) -> dict[str, np.ndarray] | None:
    """Return what is kept, or None if it is not there or damaged: then it is learned again."""
    try:
        with np.load(io.BytesIO(file.read_bytes())) as kept:
            learned = dict(kept)
        os.utime(file)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile):
        return None
    return learned


def _write(file: Path, learned: dict[str, np.ndarray]) -> None:
    """Keep it, unless the disk refuses; and no more than `KEPT`."""
    content = io.BytesIO()
    np.savez(content, **learned)  # pyright: ignore[reportArgumentType]
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        files.replace(file, content.getvalue())
        by_use = sorted(file.parent.glob("*.npz"), key=lambda kept: kept.stat().st_mtime_ns)
        for old in by_use[:-KEPT]:
            old.unlink(missing_ok=True)
