"""The folder of a run: what is in it, who may write to it, and what must not change on resuming.

`runs/<name>/` holds `config.toml` (resolved), `scene.json`, `dataset.json`, `git.txt`, `env.txt`,
`metrics.jsonl`, `timing.jsonl`, `first_batch.png` and `checkpoints/<step>/`; evaluation adds
`eval/` and `report/`. The folder is enough to continue the run, also after it has been copied
elsewhere.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hdvpd
from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import to_toml
from hdvpd.config.settings import entries
from hdvpd.errors import UserError
from hdvpd.training.files import explain_write_errors, write_text

_LOCK = {".lock"}
_SHOWN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "JAX_", "NUMBA_", "OMP_", "XLA_")


def find_run(run_dir: Path, resume: str | None, step: int | None) -> Path:
    """Decide which folder a training command is about.

    Args:
      run_dir: where a new run of this name belongs.
      resume: None starts a run, "auto" continues the one in `run_dir` or starts it, anything else
        is the path of a run, or the name of one beside `run_dir`.
      step: the checkpoint asked for.

    Raises:
      UserError: the run to start exists, the run to resume does not, or a step makes no sense.
    """
    if resume is None:
        if step is not None:
            raise UserError(f"--step {step} chooses a checkpoint to resume from: add --resume.")
        if run_dir.is_file() or (run_dir.is_dir() and {p.name for p in run_dir.iterdir()} - _LOCK):
            raise UserError(
                f"The run folder {run_dir} already exists, and a new run never writes over an old "
                "one. Continue it with --resume auto, or choose another --name."
            )
        return run_dir
    if resume == "auto":
        return run_dir
    for candidate in (Path(resume), run_dir.parent / resume):
        if (candidate / "config.toml").is_file():
            return candidate
    runs = sorted(path.parent.name for path in run_dir.parent.glob("*/config.toml"))
    raise UserError(
        f"There is no run to resume at {resume!r}, neither as a path nor in {run_dir.parent}, "
        f"which holds {', '.join(runs) or 'none'}. Give one of these, or --resume auto."
    )


@contextlib.contextmanager
def lock_run(path: Path) -> Iterator[None]:
    """Keep a second process from training in the same folder; the system frees a dead one's lock.

    Raises:
      UserError: another process holds the lock, or the folder cannot be made.
    """
    with explain_write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        file = path.joinpath(*_LOCK).open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"Another process is training in {path}. Wait for it, stop it, or choose another "
                "--name."
            ) from None
        except OSError:
            pass  # Some network file systems cannot lock; that must not stop a run.
        yield


def describe_run(
    path: Path, config: Config, scene: SceneSpec, *, dataset_identity: str
) -> dict[str, str]:
    """Write the files that say what is run, on what, with which code.

    On resuming, the files show the latest start; `env.txt` and `git.txt` of earlier starts are
    kept beside them if they differ.

    Returns:
      The texts of `config.toml` and `scene.json`, which each checkpoint carries too.
    """
    dataset = {"identity": dataset_identity, "path": config.data.path}
    carried = {"config.toml": to_toml(config), "scene.json": json.dumps(scene.to_dict(), indent=1)}
    texts = carried | {
        "dataset.json": json.dumps(dataset, indent=1),
        "git.txt": _describe_code(),
        "env.txt": _describe_environment(),
    }
    for name, text in texts.items():
        _write_keeping_old(path / name, text, keep=name in ("git.txt", "env.txt"))
    return carried


def _write_keeping_old(path: Path, text: str, *, keep: bool) -> None:
    if path.exists():
        old = path.read_text()
        if old == text:
            return
        if keep:
            number = len(list(path.parent.glob(f"{path.stem}-*{path.suffix}"))) + 1
            write_text(path.with_name(f"{path.stem}-{number}{path.suffix}"), old)
    write_text(path, text)


def config_identity(config: Config) -> str:
    """Hash the settings that decide the numbers a run produces; paths and logging are left out."""
    text = json.dumps(_binding_values(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def require_same_run(
    path: Path, saved: Config, config: Config, *, saved_dataset: str, dataset: str
) -> None:
    """Refuse to resume where the continuation would not be the same run.

    Args:
      path: the run folder, for the message.
      saved: configuration inside the checkpoint.
      config: configuration of this start.
      saved_dataset: identity of the data set inside the checkpoint.
      dataset: identity of the data set of this start.

    Raises:
      UserError: naming the first setting that differs, or the data set.
    """
    old, new = _binding_values(saved), _binding_values(config)
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            hint = " (it shapes the cosine schedule)" if key == "train.num_steps" else ""
            raise UserError(
                f"{path} was trained with {key} = {old.get(key)!r}, but this command says "
                f"{new.get(key)!r}{hint}: resuming continues a run exactly. Use its own "
                f"{path / 'config.toml'}, or start a new run with another --name."
            )
    if saved_dataset != dataset:
        raise UserError(
            f"{path} was trained on the data set with identity {saved_dataset}, but "
            f"data.path = {config.data.path!r} has {dataset}: resuming continues a run exactly. "
            "Point data.path at the same data, or start a new run with another --name."
        )


def _binding_values(config: Config) -> dict[str, Any]:
    """Flatten to dotted keys, without those that may change between two starts of one run."""
    return {entry.key: entry.value for entry in entries(config) if "resume" not in entry.free}


def library_versions() -> dict[str, str]:
    """Versions of the libraries that decide numbers."""
    names = ("jax", "jaxlib", "flax", "optax", "numpy")
    return {name: importlib.metadata.version(name) for name in names}


def _describe_environment() -> str:
    installed = importlib.metadata.distributions()
    packages = sorted({f"{d.metadata['Name']}=={d.version}" for d in installed}, key=str.lower)
    variables = [
        f"{key}={value}"
        for key, value in sorted(os.environ.items())
        if key.startswith(_SHOWN_VARIABLES)
    ]
    lines = [
        f"command: {' '.join(sys.argv)}",
        f"hdvpd: {hdvpd.__version__}",
        f"python: {platform.python_version()}",
        f"platform: {platform.platform()}",
        f"cpus: {os.cpu_count()}",
        *variables,
        "",
        *packages,
    ]
    return "\n".join(lines) + "\n"


def _describe_code() -> str:
    """Commit, state and difference of the checkout that the package is imported from."""
    source = Path(hdvpd.__file__).parent
    commit = _git(source, "rev-parse", "HEAD")
    if commit is None or _git(source, "ls-files", "--error-unmatch", "__init__.py") is None:
        return f"hdvpd {hdvpd.__version__}, not from a git checkout\n"
    status = _git(source, "status", "--short") or "clean\n"
    return f"commit {commit}\n{status}\n{_git(source, 'diff', 'HEAD') or ''}"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def scene_from_json(text: str) -> SceneSpec:
    """Read what `SceneSpec.to_dict` wrote as JSON."""
    values: Mapping[str, Any] = json.loads(text)
    low, high = values["workspace_min"], values["workspace_max"]
    return SceneSpec(
        num_robot_points=values["num_robot_points"],
        workspace_min=(low[0], low[1], low[2]),
        workspace_max=(high[0], high[1], high[2]),
    )
