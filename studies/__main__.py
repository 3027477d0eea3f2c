"""`python -m studies NAME --out DIR`: run one study."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import tyro

from hdvpd.basics.errors import UserError, how_to_install
from hdvpd.commands.base import AbstractCommand, Program
from studies.model_settings import (
    ClosedLoopSettings,
    ExecutionSettings,
    FutureSettings,
    RankingSettings,
    SpreadSettings,
)
from studies.settings import (
    CalibrationSettings,
    ExpressivitySettings,
    GrfSettings,
    MechanismSettings,
    MotifSettings,
    PictureSettings,
    VideoSettings,
    VisionSettings,
)

STUDIES: Mapping[str, type] = {
    "calibration": CalibrationSettings,
    "grf": GrfSettings,
    "mechanisms": MechanismSettings,
    "masks": PictureSettings,
    "motifs": MotifSettings,
    "expressivity": ExpressivitySettings,
    "vision": VisionSettings,
    "video": VideoSettings,
    "executions": ExecutionSettings,
    "ranking": RankingSettings,
    "closed-loop": ClosedLoopSettings,
    "futures": FutureSettings,
    "spreads": SpreadSettings,
}
"""What can be set in each study; the module of the same name runs it."""

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Study(AbstractCommand, Generic[Settings]):
    """Where a study writes, and what can be set in it."""

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder for settings, tables and figures."""
    settings: Annotated[Settings, tyro.conf.arg(name="")]

    def run(self) -> None:
        """Run the study.

        Raises:
          UserError: a library that only studies need is not installed.
        """
        (name,) = (name for name, kind in STUDIES.items() if type(self.settings) is kind)
        try:
            module = importlib.import_module(f"studies.{name.replace('-', '_')}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith(("hdvpd", "studies")):
                raise
            raise UserError(
                f"this study needs {error.name}, which is not installed: "
                f"{how_to_install('studies')}."
            ) from error
        module.main(self.out, self.settings)


PROGRAM = Program(
    name="python -m studies",
    description="Experiments: masks, walks and masked attention by themselves; plans ranked.",
    commands={name: Study[kind] for name, kind in STUDIES.items()},
)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
      args: words after `python -m studies`; by default those of the process.

    Returns:
      The exit status: 0 for success, 2 for a mistake of the user.
    """
    return PROGRAM.run(sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    sys.exit(main())
