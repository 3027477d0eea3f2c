"""Recorded joints against the limits of the robot model: in another unit they contradict these.

Sensors are noisy and arms are pushed a little beyond their limits, so a small excess says nothing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hdvpd.basics.types import Float, Int
from hdvpd.data.importers.faults import SourcePlace
from hdvpd.data.importers.robot_model import Joint, RobotModel

SHARE = 0.05
"""Of its range a joint may lie beyond a limit without a word."""
_BEYOND = "joints beyond the limits of the robot model"


class _Kind(NamedTuple):
    """How the joints of a kind are judged.

    Attributes:
      unit: of the model.
      slack: beyond a limit that is passed over, whatever the range.
      absurd: beyond a limit that no robot gets to: it is refused.
      hint: what is probably wrong.
    """

    unit: str
    slack: float
    absurd: float
    hint: str


# An encoder may have counted a whole turn more than the model has, with the same link poses.
_HINGE = _Kind("rad", 0.2, 2 * np.pi, "Degrees? Joints are radians: convert them")
_SLIDE = _Kind("m", 0.01, 1.0, "Millimetres, or a width between fingers? Convert them")


def judge_limits(
    model: RobotModel,
    joints: Sequence[Joint],
    place: SourcePlace,
    recorded: Mapping[str, tuple[Float[np.ndarray, "t j"], Int[np.ndarray, "t"]]],
) -> str:
    """Compare joints with the limits of the model's joints that they move.

    Args:
      model: of the robot.
      joints: columns of the arrays.
      place: of the episode, for messages.
      recorded: joint values of every control step, and their frames in the source, by array.

    Returns:
      A warning for people, of the value that is farthest beyond its limits; empty if all fit.

    Raises:
      BadEpisodeError: a value is so far beyond that it must be something else.
    """
    limits, warning, most = model.limits(), "", 0.0
    moves = [
        (column, name, how)
        for column, own in enumerate(model.moves())
        for name, how in own.items()
        if name in limits
    ]
    for array, (values, frames) in recorded.items():
        for column, name, (factor, offset) in moves:
            hinge, low, high = limits[name]
            kind = _HINGE if hinge else _SLIDE
            moved = factor * values[:, column].astype(np.float64) + offset
            beyond = np.maximum(low - moved, moved - high)
            worst = int(np.argmax(beyond))
            excess, frame = float(beyond[worst]), int(frames[worst])
            if excess <= max(kind.slack, SHARE * (high - low), most):
                continue
            found = f"{array}: joint {joints[column].name!r} is {values[worst, column]:.4g}"
            if (factor, offset) != (1, 0):
                found += f", which makes {name} of the robot model {moved[worst]:.4g}"
            found += f", but the model's {name} goes from {low:.4g} to {high:.4g} {kind.unit}"
            remedy = (
                f"{kind.hint} in the source (or scale them with 'drives' of 'joints' in the "
                "calibration file), or correct the limits of the robot model."
            )
            if excess > kind.absurd:
                raise place.error(found, remedy, frame)
            most = excess
            warning = f"{_BEYOND}: frame {frame}: {found}. {remedy}"
    return warning


def summarise(warnings: Mapping[str, Sequence[str]]) -> list[str]:
    """Return one line on the limits for a whole import, or none.

    Args:
      warnings: of every episode, by its name.
    """
    found = [
        (episode, text.removeprefix(f"{_BEYOND}: "))
        for episode, own in warnings.items()
        for text in own
        if text.startswith(_BEYOND)
    ]
    if not found:
        return []
    episode, text = found[0]
    return [
        f"warning: {_BEYOND} in {len(found)} of {len(warnings)} episodes; the first: episode "
        f"{episode}, {text}\n"
    ]
