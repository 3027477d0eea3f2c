"""Importers: other formats of robot RGB-D data to the native one. docs/importing.md is for users.

A format is one file with one `AbstractSource` (base.py), listed in `FORMATS`; everything else is
shared: `driver` resamples, checks and writes, `conversions` holds the geometry, `robot_model` the
kinematics, `sidecar` the calibration a user writes by hand.
"""

import importlib

from hdvpd.basics.errors import UserError
from hdvpd.data.importers.base import AbstractSource

FORMATS = {
    "folder": "FolderSource",
    "lerobot": "LeRobotSource",
    "robotwin": "RoboTwinSource",
    "maniskill": "ManiSkillSource",
    "robomimic": "RobomimicSource",
    "rlbench": "RLBenchSource",
}
"""Module of this package by format, and the source it defines."""


def source_class(name: str) -> type[AbstractSource]:
    """Find the source of a format; only its own module is imported.

    Raises:
      UserError: there is no such format.
    """
    if name not in FORMATS:
        raise UserError(
            f"hdvpd imports no format {name!r}; choose one of {', '.join(FORMATS)}, or convert "
            "your data to `folder` (docs/importing.md)."
        )
    return getattr(importlib.import_module(f"{__name__}.{name}"), FORMATS[name])
