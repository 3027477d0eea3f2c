"""What can be looked at: one scene over time, whoever made it.

The viewer and the exports know nothing but this; `hdvpd.viewing.sources` makes it of runs, data
sets and rollouts. Lengths are metres in the world frame.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hdvpd.basics.types import Bool, Camera, Float, Int, Shaped, UInt8
from hdvpd.data.kinematics import POINTS_PER_SEGMENT, Skeleton

TRUTH, PREDICTION = "truth", "prediction"


@dataclass(frozen=True)
class Particles:
    """Particles of every time.

    Attributes:
      positions: [m]; padding is anywhere.
      colors: 0 to 255; of a prediction as the model renders them.
      features: latent features, or None where nothing encoded them.
      mask: which particles are real.
      age: time steps since the particles of a time were observed.
      tracked: whether a particle keeps its index over the times since it was observed.
    """

    positions: Float[np.ndarray, "t n 3"]
    colors: UInt8[np.ndarray, "t n 3"]
    features: Float[np.ndarray, "t n c"] | None
    mask: Bool[np.ndarray, "t n"]
    age: Int[np.ndarray, "t"]
    tracked: bool


@dataclass(frozen=True)
class Layer:
    """What the cameras saw, or what a model says that they will see.

    Attributes:
      particles: in three dimensions.
      rgb: images of every camera, 0 to 255; axes (t v h w 3).
      depth_m: planar depth [m]; 0 is unknown.
    """

    particles: Particles
    rgb: UInt8[np.ndarray, "t v h w 3"]
    depth_m: Float[np.ndarray, "t v h w"]


@dataclass(frozen=True)
class Recording:
    """One scene over time.

    Attributes:
      title: such as the episode and its task.
      rate_hz: frames per second.
      num_observed: times before what is predicted; all of them where nothing is.
      cameras: names of the views.
      camera: axes (t v).
      robot: kinematic points [m].
      bones: pairs of kinematic points that a line joins.
      workspace: lower and upper corner of the box that is modelled [m].
      layers: `TRUTH`, `PREDICTION` or both; a truth that is unknown is not there.
      ssim: of the prediction against the truth, where both are there.
      stride: frames from one time to the next; with more than 1, those between are left out.
    """

    title: str
    rate_hz: float
    num_observed: int
    cameras: tuple[str, ...]
    camera: Camera
    robot: Float[np.ndarray, "t p 3"]
    bones: tuple[tuple[int, int], ...]
    workspace: tuple[Sequence[float], Sequence[float]]
    layers: Mapping[str, Layer]
    ssim: Float[np.ndarray, "t v"] | None = None
    stride: int = 1

    @property
    def num_times(self) -> int:
        """Number of times."""
        return len(self.robot)

    @property
    def last_observed(self) -> int:
        """The time at which a prediction begins."""
        return self.num_observed - 1

    def frame(self, time: int) -> int:
        """Return the number of a time's frame, counted from the first time's."""
        return time * self.stride

    def time_s(self, time: int) -> float:
        """Return seconds since the last observation, or since the start where all is observed."""
        first = self.last_observed if PREDICTION in self.layers else 0
        return self.frame(time - first) / self.rate_hz

    def describe(self, time: int) -> str:
        """Say what a time is, such as `rollout step 2 (+1.5 s)`."""
        seconds = f"{self.time_s(time):+.1f} s"
        if PREDICTION not in self.layers:
            return f"frame {self.frame(time)} ({seconds})"
        if time < self.num_observed:
            return f"observed frame {time + 1} of {self.num_observed} ({seconds})"
        return f"rollout step {time - self.num_observed} ({seconds})"

    def with_particles(self, layer: str, particles: Particles) -> "Recording":
        """Return a copy in which one layer has other particles."""
        changed = dataclasses.replace(self.layers[layer], particles=particles)
        return dataclasses.replace(self, layers={**self.layers, layer: changed})


def bones(skeleton: Skeleton) -> tuple[tuple[int, int], ...]:
    """Return which kinematic points a line joins: those along every segment.

    Args:
      skeleton: how links become points.

    Returns:
      Pairs of indices into the kinematic points; a link that is no point itself ends no line.
    """
    index = {link: i for i, link in enumerate(skeleton.points)}
    pairs = []
    for number, (first, second) in enumerate(skeleton.segments):
        start = len(skeleton.points) + number * POINTS_PER_SEGMENT
        chain = [index.get(first), *range(start, start + POINTS_PER_SEGMENT), index.get(second)]
        known = [point for point in chain if point is not None]
        pairs += list(itertools.pairwise(known))
    return tuple(pairs)


def pack(clouds: Sequence[Shaped[np.ndarray, "_ d"]]) -> tuple[np.ndarray, np.ndarray]:
    """Put clouds of different sizes side by side.

    Args:
      clouds: rows of every time.

    Returns:
      The rows, axes (t n d), padded with zeros, and the mask of real ones, axes (t n).
    """
    size = max(len(cloud) for cloud in clouds)
    rows = [np.pad(cloud, ((0, size - len(cloud)), (0, 0))) for cloud in clouds]
    return np.stack(rows), np.stack([np.arange(size) < len(cloud) for cloud in clouds])
