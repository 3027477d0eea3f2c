"""A trained model as one small file, and back to a run folder.

The file is a zip archive: `config.toml`, `scene.json`, `origin.json`, `params/<name>.npy`. Numbers
are stored in half precision (float16), which keeps 11 bits of each: parameters that would not fit
stay as they are. `unpack` makes an ordinary run of it, which every command takes; its optimiser is
new, so it can be evaluated and looked at but not resumed exactly. Equal runs give equal
bytes.
"""

import dataclasses
import hashlib
import io
import json
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from hdvpd.basics.errors import UserError
from hdvpd.basics.files import write
from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import to_toml
from hdvpd.config.reading import read
from hdvpd.data.setup import SETUP_FILE
from hdvpd.model import Model
from hdvpd.training.checkpoints import CheckpointStore, load_model
from hdvpd.training.metrics_log import METRICS_FILE
from hdvpd.training.run_folder import RunFolder
from hdvpd.training.session import new_progress
from hdvpd.training.step import create_train_state

REFERENCE = "reference"
"""Name of the model that comes with hdvpd, where one does."""
_DATE = (1980, 1, 1, 0, 0, 0)  # of every entry, so that equal content gives equal bytes
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error)
# In an unpacked run: of the file that it was unpacked from. A trained run has its metrics instead.
_DIGEST_FILE = "packed.sha256"
_REMEDY = "Free some space or choose another --out; nothing else was changed."


def pack(run_dir: Path, file: Path, step: int | None = None) -> int:
    """Write a run's parameters as one file.

    Args:
      run_dir: the run folder.
      file: where to.
      step: which checkpoint; by default the newest sound one.

    Returns:
      The checkpoint's step.

    Raises:
      UserError: there is no such or no sound checkpoint, or the disk is full or not writable.
    """
    model, config, scene, step = load_model(run_dir, step)
    _, _, progress = CheckpointStore(run_dir).read_origin(step)
    setup = run_dir / SETUP_FILE
    origin = {"step": step, "dataset": progress["dataset"]}
    if setup.is_file():
        origin["setup"] = setup.read_text(encoding="utf-8")
    entries = {
        "config.toml": to_toml(config).encode(),
        "scene.json": json.dumps(scene.to_dict(), indent=1).encode(),
        "origin.json": json.dumps(origin, indent=1).encode(),
    }
    for name, values in _named(model).items():
        entries[f"params/{name}.npy"] = _npy(_halved(values))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(entries.items()):
            archive.writestr(
                zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED, compresslevel=9
            )
    write(file, packed.getvalue(), _REMEDY)
    return step


def unpack(file: Path, run_dir: Path) -> None:
    """Make a run folder of a packed model.

    Args:
      file: of `pack`.
      run_dir: a folder that is not there yet.

    Raises:
      UserError: the file is missing, damaged or of another version, or the folder exists.
    """
    if run_dir.exists():
        raise UserError(f"{run_dir} exists; remove it, or name another folder.")
    config, scene, origin, arrays = read_packed(file)
    _, state = create_train_state(config, scene)
    state = dataclasses.replace(state, params=_filled(state.params, arrays, file))
    identity = origin["dataset"]
    texts = RunFolder(run_dir).describe(config, scene, dataset_identity=identity)
    if "setup" in origin:
        write(run_dir / SETUP_FILE, origin["setup"], _REMEDY)
    progress = new_progress(identity) | {"step": origin["step"], "next_batch": origin["step"]}
    CheckpointStore(run_dir).save(origin["step"], state, progress=progress, files=texts)
    write(run_dir / _DIGEST_FILE, _digest(file), _REMEDY)


def find_or_unpack(run: Path) -> Path:
    """Find a run; the model that comes with hdvpd, `reference`, becomes one in `runs/`.

    Returns:
      The run's folder.

    Raises:
      UserError: there is no such run, or `reference` was unpacked from another model than the one
        that this hdvpd comes with.
    """
    found = RunFolder.search(run)
    if str(run) != REFERENCE or (found and (found.path / METRICS_FILE).is_file()):
        return RunFolder.find(run).path
    if found is None:
        file, folder = shipped_model(), Path("runs") / run
        print(f"unpacking the trained model that comes with hdvpd into {folder}", flush=True)
        unpack(file, folder)
        return folder
    record = found.path / _DIGEST_FILE
    if not record.is_file() or record.read_text() != _digest(shipped_model()):
        raise UserError(
            f"{found.path} is not the model that comes with this version of hdvpd: another one "
            "unpacked it, or was interrupted. Move it away, and this version's is unpacked; or "
            f"name it by its path, {found.path.absolute()}, to use it as it is."
        )
    return found.path


def read_packed(
    file: Path,
) -> tuple[Config, SceneSpec, dict[str, Any], dict[str, np.ndarray]]:
    """Read a packed model.

    Returns:
      Configuration and scene, the checkpoint's step and data set, and parameters by name.

    Raises:
      UserError: the file is missing, damaged or of another version.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        tables = tomllib.loads(entries["config.toml"].decode())
        scene = SceneSpec.from_dict(json.loads(entries["scene.json"]))
        origin = json.loads(entries["origin.json"])
        arrays = {
            name.removeprefix("params/").removesuffix(".npy"): np.load(io.BytesIO(content))
            for name, content in entries.items()
            if name.startswith("params/")
        }
    except (OSError, EOFError, KeyError, RuntimeError, ValueError, *_DAMAGED) as error:
        raise UserError(
            f"{file} is no packed model that can be read ({error}). Make it again with "
            "`hdvpd model pack RUN`, or install hdvpd again if it came with it."
        ) from error
    return read(tables, source=f"config.toml in {file}"), scene, origin, arrays


def shipped_model() -> Path:
    """Return the file of the model that comes with hdvpd.

    Raises:
      UserError: this hdvpd ships none.
    """
    file = Path(str(files("hdvpd"))) / "pretrained" / f"{REFERENCE}.zip"
    if not file.is_file():
        raise UserError(
            "This hdvpd comes without a trained model. Train one (`hdvpd train demo`) and give its "
            "run folder, or give the run folder of another."
        )
    return file


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _named(model: Model) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree.flatten_with_path(nnx.to_pure_dict(nnx.state(model)))
    return {_name(path): np.asarray(leaf) for path, leaf in leaves}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _halved(values: np.ndarray) -> np.ndarray:
    if values.dtype != np.float32:
        return values
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    return half if np.isfinite(half).all() else values


def _npy(values: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, values, allow_pickle=False)
    return content.getvalue()


def _filled(params: Any, arrays: Mapping[str, np.ndarray], file: Path) -> Any:
    leaves, treedef = jax.tree.flatten_with_path(params)
    expected = {_name(path): leaf.shape for path, leaf in leaves}
    found = {name: values.shape for name, values in arrays.items()}
    if expected != found:
        name = next(n for n in [*expected, *found] if expected.get(n) != found.get(n))
        raise UserError(
            f"{file} was packed by another version of hdvpd: {name} is "
            f"{found.get(name, 'absent')} in the file and {expected.get(name, 'absent')} in the "
            "model. Install the version that packed it, or pack the run again."
        )
    filled = [jax.numpy.asarray(arrays[_name(path)], leaf.dtype) for path, leaf in leaves]
    return jax.tree.unflatten(treedef, filled)
