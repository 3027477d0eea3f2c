"""Which frames of a recording stand for its control steps, and what leads from each to the next."""

from dataclasses import dataclass

import numpy as np

from hdvpd.basics.types import Float, Int
from hdvpd.data.importers import base, conversions
from hdvpd.data.importers.faults import SourcePlace

MIN_FRAMES = 2
MAX_STEPS_PER_FRAME = 100
"""Frames this much rarer than control steps have time stamps in another unit."""


@dataclass(frozen=True)
class Steps:
    """The control steps of a recording: rows of its frames and commands.

    Attributes:
      rows: frames that were picked.
      offsets_s: how far each lies from its step [s].
      following: frames of the next steps, as of `conversions.next_rows`.
      commanded: commands that lead to them, as of `conversions.commanded_rows`.
      left_out: how many steps there are beside these, because a camera's picture was not recorded.
    """

    rows: Int[np.ndarray, "t"]
    offsets_s: Float[np.ndarray, "t"]
    following: Int[np.ndarray, "t"]
    commanded: Int[np.ndarray, "t"]
    left_out: int

    def report(self) -> tuple[str, ...]:
        """Say how many steps are left out and why, for people; nothing if none is."""
        if not self.left_out:
            return ()
        return (
            f"{self.left_out} of {len(self.rows) + self.left_out} control steps are left out: "
            "lag_s of the cameras leads out of the recording",
        )


def pick_steps(recording: base.Recording, place: SourcePlace, step_s: float) -> Steps:
    """Pick the frame nearest to every control step of which all cameras have a picture.

    Args:
      recording: its time stamps are finite.
      place: of it, for messages.
      step_s: control step [s].

    Raises:
      BadEpisodeError: time stamps do not increase or are in another unit, the recording is too
        short, or no frame is near enough to a step.
    """
    time = recording.time_s
    place.require(
        np.concatenate([[True], np.diff(time) > 0]),
        "time_s",
        "the time stamp is not later than the one before",
        "Time stamps are seconds and strictly increase; remove repeated frames.",
    )
    # Before a grid over it is made: nanoseconds taken for seconds would fill the memory.
    steps = (time[-1] - time[0]) / step_s
    if steps > MAX_STEPS_PER_FRAME * len(time):
        raise place.error(
            f"time_s: its {len(time)} frames last {time[-1] - time[0]:.4g} s, {steps:.3g} control "
            "steps",
            "Time stamps are seconds: milliseconds or nanoseconds must be converted.",
        )
    rows, offsets = conversions.nearest_rows(time, step_s)
    # Where a camera is late, pictures of the last steps were never recorded; others would be wrong.
    shown = recording.has_pictures(rows)
    if shown.sum() < MIN_FRAMES:
        late = "," if shown.all() else ", once lag_s of the cameras is taken off,"
        raise place.error(
            f"its {len(time)} frames last {time[-1] - time[0]:.3g} s{late} less than one control "
            "step",
            f"Record longer, or choose a --step below {step_s:g} s.",
        )
    limit = conversions.MAX_OFFSET * step_s
    worst = int(np.argmax(np.abs(offsets)))
    if abs(offsets[worst]) > limit * (1 + 1e-6) or (np.diff(rows) < 1).any():
        raise place.error(
            f"no frame lies within {limit:.3g} s of {time[0] + worst * step_s:.3f} s; the nearest "
            f"is {abs(offsets[worst]):.3g} s away",
            "The recording has a gap, or its rate does not fit --step (about "
            f"{1 / np.median(np.diff(time)):.3g} frames per second).",
            int(rows[worst]),
        )
    return Steps(
        rows=rows[shown],
        offsets_s=offsets[shown],
        following=conversions.next_rows(rows)[shown],
        commanded=conversions.commanded_rows(rows)[shown],
        left_out=int((~shown).sum()),
    )
