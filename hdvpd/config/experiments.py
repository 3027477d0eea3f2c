"""Find, read, override and write experiments.

An experiment is a TOML file that states only how it differs from the defaults of
`hdvpd.config`. Values are read in this order: defaults, file, overrides. Overrides are tables like
those of a file, made of the command line's flags or written by hand; both go through the same
checks, and a mistake in either is one `UserError` that names the file, the key, the value and the
nearest valid key.
"""

import importlib.resources
import tomllib
from pathlib import Path
from typing import Any

from hdvpd.basics.errors import UserError, nearest
from hdvpd.config import Config
from hdvpd.config.reading import Tables, read, toml_lines
from hdvpd.config.settings import entries, to_table


def config_files(folder: str = "") -> dict[str, Path]:
    """List the files of a folder of configurations that comes with hdvpd.

    Args:
      folder: inside `configs`; empty is that of the experiments.

    Returns:
      The path of each file by its name. The wheel holds them inside the package; a clone has them
      in `configs/` beside it.
    """
    package = Path(str(importlib.resources.files("hdvpd")))
    for configs in (package / "configs", package.parent / "configs"):
        files = sorted((configs / folder).glob("*.toml"))
        if files:
            return {path.stem: path for path in files}
    return {}


def find_experiment(name_or_path: str) -> Path:
    """Find the file of an experiment.

    Args:
      name_or_path: name of an experiment that comes with hdvpd, or path of a TOML file.

    Returns:
      The file's path; a path is returned as given.

    Raises:
      UserError: there is no such file or experiment.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml" or len(path.parts) > 1:
        if not path.is_file():
            raise UserError(f"{name_or_path}: there is no such experiment file; check the path.")
        return path
    names = config_files()
    if name_or_path not in names:
        near = nearest(name_or_path, names)
        hint = f"; did you mean {near!r}?" if near else "."
        raise UserError(
            f"no experiment is called {name_or_path!r}: give one of {', '.join(names)} or the path "
            f"of a .toml file{hint}"
        )
    return names[name_or_path]


def load_config(name_or_path: str, overrides: Tables | None = None) -> Config:
    """Read an experiment.

    Args:
      name_or_path: name of an experiment that comes with hdvpd, or path of a TOML file.
      overrides: what to change of it, such as `{"model": {"num_particles": 512}}`.

    Raises:
      UserError: a key, a type, a value or a combination is not possible.
    """
    path = find_experiment(name_or_path)
    return read(read_tables(path), overrides, source=str(path))


def read_toml(path: Path | str) -> Config:
    """Read a TOML file; keys that it lacks keep their defaults.

    Raises:
      UserError: the file cannot be read, or a key, a type or a value is not possible.
    """
    return read(read_tables(Path(path)), source=str(path))


def apply_overrides(config: Config, overrides: Tables, *, source: str = "configuration") -> Config:
    """Change a configuration.

    Args:
      config: the configuration to start from.
      overrides: what to change, such as `{"eval": {"num_steps": 24}}`.
      source: where `config` came from, for messages.

    Returns:
      The changed configuration; `config` itself is never changed.

    Raises:
      UserError: a key, a type, a value or a combination is not possible.
    """
    return read(to_table(config), overrides, source=source)


def read_tables(path: Path) -> dict[str, Any]:
    """Read a TOML file as it is, unchecked.

    Raises:
      UserError: it cannot be read.
    """
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: this is not valid TOML: {error}.") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error


def flatten(config: Config) -> dict[str, Any]:
    """Return every value of a configuration by its dotted key."""
    return {entry.key: entry.value for entry in entries(config)}


def to_toml(config: Config) -> str:
    """Write every value of a configuration as TOML; `read_toml` gives it back unchanged."""
    return "\n".join(toml_lines(to_table(config)))
