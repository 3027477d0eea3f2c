"""The one interface of every dynamics model."""

import abc
from collections.abc import Callable

from flax import nnx

from hdvpd.basics.types import Array, Bool, Float, ParticleCloud, PRNGKey, RobotPoints, pytree
from hdvpd.dynamics.unseen import Unseen


@pytree
class Change:
    """Predicted change of every particle of the current cloud.

    Attributes:
      displacement: change of position [m].
      features: change of features.
    """

    displacement: Float[Array, "*batch n 3"]
    features: Float[Array, "*batch n c"]


@pytree
class Known:
    """What is said of particles once, when a rollout begins.

    Attributes:
      robots: those of the robot. Said of observed particles: later the planned hand, which does not
        know that it is stopped, comes into what it holds.
      unseen: what is hidden of things, with `model.stochastic`.
    """

    robots: Bool[Array, "n"]
    unseen: Unseen | None


Step = Callable[[ParticleCloud, ParticleCloud, RobotPoints, PRNGKey], Change]
"""One step of a rollout: what `AbstractDynamics` is called with, and returns."""


class AbstractDynamics(nnx.Module):
    """Predicts how the current particles change until the next frame."""

    def know(self, current: ParticleCloud, robot: RobotPoints, key: PRNGKey) -> Known | None:
        """Say what stays as it is during a rollout; None if the model tells nothing apart.

        Args:
          current: observed particles.
          robot: kinematic points, axes (f p), of which the second are of the same time.
          key: draws what cannot be seen.
        """
        del current, robot, key
        return None

    def begin(self, known: Known | None) -> Step:
        """Return the step of a rollout that knows what `know` said of its particles."""
        del known
        return self

    @abc.abstractmethod
    def __call__(
        self, previous: ParticleCloud, current: ParticleCloud, robot: RobotPoints, key: PRNGKey
    ) -> Change:
        """Return the change from `current` to the next frame.

        Args:
          previous: particles at t - 2.
          current: particles at t - 1, without correspondence to `previous`.
          robot: kinematic points at t - 2, t - 1 and the planned t, axes (3 p).
          key: draws walkers or anchors, for the models that have them.
        """


def advance(cloud: ParticleCloud, change: Change) -> ParticleCloud:
    """Apply a change: x + dx, f + df; the mask stays."""
    return ParticleCloud(
        positions=cloud.positions + change.displacement,
        features=cloud.features + change.features,
        mask=cloud.mask,
    )
