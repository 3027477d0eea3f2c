"""The members of the comparison: models that differ in their dynamics and in nothing else.

A member is an experiment file that states nothing but its part of the model; those that come with
hdvpd are in `configs/members/`.
"""

from pathlib import Path

from hdvpd.basics.errors import UserError, nearest
from hdvpd.config import Config
from hdvpd.config.experiments import config_files, read_tables
from hdvpd.config.reading import overlay, read
from hdvpd.config.settings import to_table


def member_names() -> tuple[str, ...]:
    """List the members that come with hdvpd."""
    return tuple(config_files("members"))


def find_member(name_or_path: str) -> Path:
    """Find the file of a member.

    Args:
      name_or_path: name of a member that comes with hdvpd, or path of a TOML file.

    Raises:
      UserError: there is no such member.
    """
    files = config_files("members")
    path = Path(name_or_path)
    if path.suffix == ".toml" and path.is_file():
        return path
    if name_or_path not in files:
        near = nearest(name_or_path, files)
        hint = f"did you mean {near!r}?" if near else f"the members are {', '.join(files)}"
        raise UserError(
            f"there is no member {name_or_path!r}; {hint}, or give the path of a .toml file."
        )
    return files[name_or_path]


def with_member(config: Config, member: str) -> Config:
    """Return a configuration with a member's dynamics.

    Raises:
      UserError: there is no such member, or the configuration has no place for it.
    """
    path = find_member(member)
    return read(overlay(Config, to_table(config), read_tables(path)), source=str(path))
