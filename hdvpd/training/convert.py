"""`hdvpd model convert`: files and runs of earlier versions, rewritten in present keys."""

import hashlib
import shutil
from pathlib import Path

from hdvpd.basics import files
from hdvpd.basics.errors import UserError
from hdvpd.config.earlier import converted, is_earlier
from hdvpd.config.experiments import read_tables, to_toml
from hdvpd.config.reading import read, toml_lines
from hdvpd.training.checkpoint_folder import DIGEST, digest, digest_text, find_damage

_REMEDY = "Free some space or permit writing there, then convert again."

KEPT = "config-earlier.toml"
"""A run's configuration as it was before."""


def convert(path: Path) -> list[Path]:
    """Rewrite an experiment file, or the configuration of a run and of its checkpoints.

    The old text stays beside the new one: an experiment's as `<name>-earlier.toml`, a run's as
    `config-earlier.toml`. Parameters stay where they are. A damaged checkpoint is left alone, but
    for one that an earlier conversion was killed in, which is finished.

    Returns:
      The files that were rewritten; none if all are in present keys.

    Raises:
      UserError: there is no such file or run, or its values are not possible.
    """
    if path.is_dir():
        file = path / "config.toml"
        if not file.is_file():
            raise UserError(f"{path} is no run folder: it has no config.toml.")
        checkpoints = [found.parent for found in path.glob("checkpoints/*/config.toml")]
        done = [folder for folder in sorted(checkpoints) if _convert_checkpoint(folder)]
        changed = [folder / "config.toml" for folder in done]
        return [*changed, file] if _convert_file(file, path / KEPT) else changed
    return [path] if _convert_file(path, path.with_name(f"{path.stem}-earlier.toml")) else []


def _convert_file(file: Path, kept: Path) -> bool:
    tables = read_tables(file)
    if not is_earlier(tables):
        return False
    tables = converted(tables)
    read(tables, source=str(file))
    shutil.copyfile(file, kept)
    _write(file, "\n".join(toml_lines(tables)))
    return True


def _convert_checkpoint(folder: Path) -> bool:
    file, kept = folder / "config.toml", folder / KEPT
    # Nothing but the configuration and the digest of before fit together, or both of after. Who
    # was killed between them left the configuration of before.
    if kept.is_file() and find_damage(folder) is not None:
        kept.replace(file)
    kept.unlink(missing_ok=True)
    tables = read_tables(file)
    if not is_earlier(tables) or find_damage(folder) is not None:
        return False
    old, new = file.read_text(), to_toml(read(converted(tables), source=str(file)))
    declared = digest_text({**digest(folder), file.name: hashlib.sha256(new.encode()).hexdigest()})
    _write(kept, old)
    try:
        _write(file, new)
        _write(folder / DIGEST, declared)
    except UserError:
        _write(file, old)
        raise
    finally:
        if find_damage(folder) is None:
            kept.unlink()
    return True


def _write(file: Path, text: str) -> None:
    files.write(file, text, _REMEDY)
