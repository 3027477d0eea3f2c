"""What a configuration leaves to the data set."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SceneSpec:
    """What a model must know of a data set before it can be built.

    Attributes:
      num_robot_points: kinematic points per time step, P.
      workspace_min: lower corner of the workspace box, world frame [m].
      workspace_max: upper corner of the workspace box, world frame [m].
    """

    num_robot_points: int
    workspace_min: tuple[float, float, float]
    workspace_max: tuple[float, float, float]

    @property
    def center(self) -> tuple[float, float, float]:
        """Centre of the workspace box [m]."""
        low, high = self.workspace_min, self.workspace_max
        return (0.5 * (low[0] + high[0]), 0.5 * (low[1] + high[1]), 0.5 * (low[2] + high[2]))

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SceneSpec":
        """Read what `to_dict` returned, also after JSON made lists of the corners."""
        low, high = values["workspace_min"], values["workspace_max"]
        return cls(
            num_robot_points=values["num_robot_points"],
            workspace_min=(low[0], low[1], low[2]),
            workspace_max=(high[0], high[1], high[2]),
        )
