"""The folder of a run: what is in it, who may write to it, and what must not change on resuming.

`runs/<name>/` holds `config.toml` (resolved), `scene.json`, `dataset.json`, `git.txt`, `env.txt`,
`setup.json`, `metrics.jsonl`, `timing.jsonl`, `first_batch.png` and `checkpoints/<step>/`;
evaluation adds `eval/` and `report/`. The folder is enough to continue the run, also after it has
been copied elsewhere.
"""

import contextlib
import functools
import glob
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hdvpd
from hdvpd.basics import files
from hdvpd.basics.errors import UserError
from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import read_toml, to_toml
from hdvpd.config.settings import entries
from hdvpd.training.metrics_log import ELSEWHERE, REMEDY, read_records

if TYPE_CHECKING:
    from hdvpd.training.checkpoints import CheckpointStore

_SHOWN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "JAX_", "NUMBA_", "OMP_", "XLA_")


@dataclass(frozen=True)
class RunFolder:
    """A run on disk."""

    path: Path

    @classmethod
    def find(cls, run: Path | str, runs_dir: Path = Path("runs")) -> "RunFolder":
        """Find a run.

        Raises:
          UserError: there is none.
        """
        found = cls.search(run, runs_dir)
        if found is None:
            raise UserError(
                f"{run} is no run folder (it has no config.toml). Train one with `hdvpd train`, or "
                f"give the path of one; {runs_dir}/ holds {_names(runs_dir)}."
            )
        return found

    @classmethod
    def find_to_train(cls, run_dir: Path, resume: str | None, step: int | None) -> "RunFolder":
        """Decide which folder a training command is about.

        Args:
          run_dir: where a new run of this name belongs.
          resume: None starts a run, "auto" continues the one in `run_dir` or starts it, anything
            else is the path of a run, or the name of one beside `run_dir`.
          step: the checkpoint asked for.

        Raises:
          UserError: the run to start exists, the run to resume does not or has no checkpoint, a
            step makes no sense, or no checkpoint can be saved below such a path.
        """
        _require_plain(run_dir)
        if resume == "auto":
            return cls(run_dir)
        if resume is not None:
            found = cls.search(resume, run_dir.parent)
            if found is None:
                raise UserError(
                    f"There is no run to resume at {resume!r}, neither as a path nor in "
                    f"{run_dir.parent}, which holds {_names(run_dir.parent)}. Give one of these, "
                    "or --resume auto."
                )
            _require_plain(found.path)
            if not found.checkpoints().steps():
                raise UserError(
                    f"{found.path} has no checkpoint to continue from. Put its checkpoints/ back, "
                    f"or begin it anew, log and all: --resume auto --name {found.path.name}."
                )
            return found
        if step is not None:
            raise UserError(f"--step {step} chooses a checkpoint to resume from: add --resume.")
        if run_dir.is_file() or (
            run_dir.is_dir() and {p.name for p in run_dir.iterdir()} - {files.LOCK}
        ):
            raise UserError(
                f"The run folder {run_dir} already exists, and a new run never writes over an old "
                f"one. Continue it with --resume auto, or choose {ELSEWHERE}."
            )
        return cls(run_dir)

    @classmethod
    def search(cls, run: Path | str, runs_dir: Path = Path("runs")) -> "RunFolder | None":
        """Return a run by its path or by its name, if there is one."""
        places = (cls(Path(run)), cls(runs_dir / run))
        return next((place for place in places if place.exists), None)

    @property
    def config_file(self) -> Path:
        """The resolved experiment of the latest start."""
        return self.path / "config.toml"

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.config_file.is_file()

    def config(self) -> Config:
        """Read the configuration of the latest start.

        Raises:
          UserError: there is none, or it is not possible.
        """
        if not self.exists:
            raise UserError(
                f"{self.config_file} does not exist: name the experiment that the run began with."
            )
        return read_toml(self.config_file)

    def checkpoints(self, keep: int = 1) -> "CheckpointStore":
        """Return the run's checkpoints, of which `keep` stay when one is added."""
        from hdvpd.training.checkpoints import CheckpointStore  # takes a second, and few need it

        return CheckpointStore(self.path, keep)

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep a second process from training in the folder.

        Raises:
          FolderInUseError: another process holds the lock.
          UserError: the folder cannot be made.
        """
        refusal = (
            f"Another process is training in {self.path}. Wait for it, stop it, or choose "
            f"{ELSEWHERE}."
        )
        return files.locked(self.path / files.LOCK, refusal, REMEDY)

    def describe(
        self, config: Config, scene: SceneSpec, *, dataset_identity: str
    ) -> dict[str, str]:
        """Write the files that say what is run, on what, with which code.

        On resuming, the files show the latest start; `env.txt` and `git.txt` of earlier starts are
        kept beside them if they differ.

        Returns:
          The texts of `config.toml` and `scene.json`, which each checkpoint carries too.
        """
        dataset = {"identity": dataset_identity, "path": config.data.path}
        scene_text = json.dumps(scene.to_dict(), indent=1)
        carried = {"config.toml": to_toml(config), "scene.json": scene_text}
        texts = carried | {
            "dataset.json": json.dumps(dataset, indent=1),
            "git.txt": _describe_code(),
            "env.txt": _describe_environment(),
        }
        with files.explain_write_errors(self.path, REMEDY):
            self.path.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            _write_keeping_old(self.path / name, text, keep=name in ("git.txt", "env.txt"))
        return carried

    def code(self) -> str:
        """Return the commit that the run was started with, and whether its files were changed."""
        file = self.path / "git.txt"
        text = file.read_text(errors="replace") if file.is_file() else "unknown"
        commit, *state = [line for line in text.splitlines() if line] or ["unknown"]
        return commit if state[:1] in ([], ["clean"]) else f"{commit} with changes"

    def numbers(self, file: str, kind: str, key: str) -> tuple[float, ...]:
        """Read a value from every record of a kind; lines not written whole are left out."""
        values = [r.get(key) for r in read_records(self.path / file) if r["kind"] == kind]
        return tuple(value for value in values if isinstance(value, int | float))

    def require_experiment(self, config: Config) -> None:
        """Refuse another experiment than the run's before its data are opened.

        `require_same` asks again, and of the data too.

        Raises:
          UserError: naming the first setting that differs.
        """
        saved = sorted((self.path / "checkpoints").glob("[0-9]*/config.toml"))
        if not saved:
            return
        try:
            own = read_toml(saved[-1])
        except UserError:  # what is wrong with a checkpoint is said when it is read
            return
        self._require_settings(own, config)

    def require_same(
        self, saved: Config, config: Config, *, saved_dataset: str, dataset: str
    ) -> None:
        """Refuse to resume where the continuation would not be the same run.

        Raises:
          UserError: naming the first setting that differs, or the data set.
        """
        self._require_settings(saved, config)
        then, now = saved_dataset.split("+"), dataset.split("+")
        if len(then) != len(now):
            raise UserError(
                f"{self.path} was trained on {len(then)} data sets, but data.path = "
                f"{config.data.path!r} names {len(now)}: resuming continues a run exactly. Name "
                f"the same data sets in the same order, or choose {ELSEWHERE}."
            )
        for was, found, path in zip(then, now, config.data.paths, strict=True):
            if was != found:
                raise UserError(
                    f"{self.path} was trained on the data set with identity {was}, but "
                    f"data.path = {path!r} has {found}: resuming continues a run exactly. Point "
                    f"data.path at the same data, or choose {ELSEWHERE}."
                )

    def _require_settings(self, saved: Config, config: Config) -> None:
        old, new = _binding_values(saved), _binding_values(config)
        for key in dict.fromkeys([*old, *new]):
            if old.get(key) != new.get(key):
                hint = " (it shapes the cosine schedule)" if key == "train.num_steps" else ""
                raise UserError(
                    f"{self.path} was trained with {key} = {old.get(key)!r}, but this command says "
                    f"{new.get(key)!r}{hint}: resuming continues a run exactly. Use its own "
                    f"{self.config_file}, or choose {ELSEWHERE}."
                )


def _require_plain(run_dir: Path) -> None:
    whole = str(run_dir.absolute())
    if glob.escape(whole) != whole:
        raise UserError(
            f"The run folder {run_dir} would have *, ? or [ in its path {whole}, with which "
            f"checkpoints cannot be saved. Choose {ELSEWHERE}."
        )


def _names(runs_dir: Path) -> str:
    names = sorted(path.parent.name for path in runs_dir.glob("*/config.toml"))
    return ", ".join(names) or "none"


def _write_keeping_old(path: Path, text: str, *, keep: bool) -> None:
    if path.exists():
        old = path.read_bytes()  # whatever has become of it
        if old == text.encode():
            return
        if keep:
            number = len(list(path.parent.glob(f"{path.stem}-*{path.suffix}"))) + 1
            kept = path.with_name(f"{path.stem}-{number}{path.suffix}")
            files.write(kept, old, REMEDY)
    files.write(path, text, REMEDY)


def config_identity(config: Config) -> str:
    """Hash the settings that decide the numbers a run produces; paths and logging are left out."""
    text = json.dumps(_binding_values(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _binding_values(config: Config) -> dict[str, Any]:
    """Flatten to dotted keys, without those that may change between two starts of one run."""
    return {entry.key: entry.value for entry in entries(config) if "resume" not in entry.free}


def library_versions() -> dict[str, str]:
    """Versions of the libraries that decide numbers."""
    names = ("jax", "jaxlib", "flax", "optax", "numpy")
    return {name: importlib.metadata.version(name) for name in names}


def _describe_environment() -> str:
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
        *_installed_packages(),
    ]
    return "\n".join(lines) + "\n"


@functools.cache  # reading the descriptions of two hundred packages takes a quarter of a second
def _installed_packages() -> list[str]:
    installed = importlib.metadata.distributions()
    return sorted({f"{d.metadata['Name']}=={d.version}" for d in installed}, key=str.lower)


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
