"""What a plan costs: functions of a predicted future, one number per plan.

Lengths are metres. `world.rollout` keeps a particle in its row, so that an object is the rows of
the particles that lie on it when the plan begins.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Camera, Float, UInt8
from hdvpd.config.settings import require
from hdvpd.world.future import Future
from hdvpd.world.state import Place, State


@dataclass(frozen=True)
class AbstractCost:
    """A cost of plans; lower is better."""

    @property
    def needs_images(self) -> bool:
        """Whether futures must be rendered, for which they keep their features."""
        return False

    @property
    def goals(self) -> tuple[Sequence[float], ...]:
        """Places [m] to which something is to be brought; NaN where a coordinate does not count."""
        return ()

    def check(self, state: State) -> None:
        """Refuse a state to which the cost cannot be applied, before anything is rolled out.

        Raises:
          UserError: no particle shows the object that the cost is about.
        """

    @abstractmethod
    def __call__(self, future: Future) -> Float[np.ndarray, "b"]:
        """Return the cost of every plan of a future with an axis of plans."""

    def slope(self, future: Future) -> Float[np.ndarray, "b s n 3"]:
        """Return the derivative of the costs with regard to the predicted positions.

        Raises:
          UserError: it is not known.
        """
        del future
        raise UserError(
            f"{type(self).__name__} has no gradient; plan with a solver that only samples."
        )


def object_rows(state: State, place: Place) -> np.ndarray:
    """Return the rows of the particles on an object.

    Args:
      state: where the plan begins.
      place: says where the object lies then.

    Raises:
      UserError: no particle of the last step lies there.
    """
    state.require(place)
    return np.flatnonzero(state.current.mask & place(np.asarray(state.current.positions)))


def require_in_workspace(
    goals: Sequence[Sequence[float]], workspace: tuple[Sequence[float], Sequence[float]] | None
) -> None:
    """Refuse goals where the model knows nothing.

    Args:
      goals: as of `AbstractCost.goals`.
      workspace: corners of the box that is modelled [m]; None refuses nothing.

    Raises:
      UserError: a goal lies outside.
    """
    for goal in goals if workspace is not None else ():
        low, high = (np.asarray(corner, np.float64) for corner in workspace or ())
        place = np.asarray(goal, np.float64)
        if ((place < low) | (place > high)).any():  # a NaN is neither
            told = ", ".join("any" if np.isnan(x) else f"{x:g}" for x in place)
            raise UserError(
                f"The goal ({told}) lies outside the workspace, which reaches from "
                f"{np.round(low, 2).tolist()} to {np.round(high, 2).tolist()} [m]: choose one "
                "inside."
            )


@dataclass(frozen=True)
class AbstractObjectCost(AbstractCost):
    """A cost of what happens to an object.

    Attributes:
      place: where the object lies when the plan begins, as for `State.keep`.
    """

    place: Place

    def check(self, state: State) -> None:
        """Require particles on the object."""
        object_rows(state, self.place)

    def path(self, future: Future) -> Float[np.ndarray, "b s n 3"]:
        """Return where the object's particles go [m]."""
        rows = object_rows(future.start, self.place)
        return np.asarray(future.positions, np.float64)[:, :, rows]

    def at_the_end(
        self, future: Future, slope: Float[np.ndarray, "b #m 3"]
    ) -> Float[np.ndarray, "b s n 3"]:
        """Return a slope with regard to the object's last positions as one of all positions."""
        rows = object_rows(future.start, self.place)
        whole = np.zeros(future.positions.shape)
        whole[:, -1, rows] = slope
        return whole


@dataclass(frozen=True)
class GoalPlace(AbstractObjectCost):
    """Distance of the object's centre from a place at the end of the plan [m].

    Attributes:
      goal: the place (x, y, z); a coordinate of NaN does not count.
    """

    goal: Sequence[float]

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        goal = np.asarray(self.goal, np.float64)
        good = goal.shape == (3,) and not np.isinf(goal).any() and not np.isnan(goal).all()
        # Of NaN alone, every plan would be best.
        remedy = "use (x, y, z) in metres; NaN where one does not count, but not for all three"
        require(bool(good), "goal", goal.tolist(), remedy)

    @property
    def goals(self) -> tuple[Sequence[float], ...]:
        """The place."""
        return (self.goal,)

    def __call__(self, future: Future) -> Float[np.ndarray, "b"]:
        """Return the distances."""
        return np.linalg.norm(self._off(future)[0], axis=-1)

    def slope(self, future: Future) -> Float[np.ndarray, "b s n 3"]:
        """Return the direction away from the goal, shared by the object's particles."""
        off, count = self._off(future)
        distance = np.maximum(np.linalg.norm(off, axis=-1, keepdims=True), 1e-9)
        return self.at_the_end(future, (off / distance / count)[:, None])

    def _off(self, future: Future) -> tuple[Float[np.ndarray, "b 3"], int]:
        path, goal = self.path(future)[:, -1], np.asarray(self.goal, np.float64)[None]
        return np.where(np.isnan(goal), 0.0, path.mean(1) - np.nan_to_num(goal)), path.shape[1]


@dataclass(frozen=True)
class GoalPose(AbstractObjectCost):
    """Mean distance of the object's particles from where a rigid motion would bring them [m].

    Attributes:
      motion: pose (4, 4) that maps points of the object now to where they should be.
    """

    motion: Float[np.ndarray, "4 4"] | None = None

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        if self.motion is not None:
            motion = np.asarray(self.motion, np.float64)
            good = motion.shape == (4, 4) and _is_rigid(motion)
            remedy = "use a pose (4, 4): a rotation, a shift in metres, and 0 0 0 1 below"
            require(good, "motion", motion.tolist(), remedy)

    def __call__(self, future: Future) -> Float[np.ndarray, "b"]:
        """Return the mean distances."""
        motion = np.eye(4) if self.motion is None else np.asarray(self.motion, np.float64)
        now = future.start.current.positions[object_rows(future.start, self.place)]
        wanted = now @ motion[:3, :3].T + motion[None, :3, 3]
        return np.linalg.norm(self.path(future)[:, -1] - wanted[None], axis=-1).mean(-1)


def _is_rigid(motion: Float[np.ndarray, "4 4"]) -> bool:
    turn = motion[:3, :3]
    square = np.allclose(turn @ turn.T, np.eye(3), atol=1e-3) and np.linalg.det(turn) > 0
    return bool(square and np.isfinite(motion).all() and (motion[3] == [0, 0, 0, 1]).all())


@dataclass(frozen=True)
class Lift(AbstractObjectCost):
    """How far the object's centre ends below a height above where it is now [m], at least 0.

    Attributes:
      height: wanted rise [m].
    """

    height: float = 0.1

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        require(0 <= self.height < np.inf, "height", self.height, "use 0 or more metres")

    def __call__(self, future: Future) -> Float[np.ndarray, "b"]:
        """Return what is missing."""
        rows = object_rows(future.start, self.place)
        before = future.start.current.positions[rows, 2].mean()
        rise = self.path(future)[:, -1, :, 2].mean(-1) - before
        return np.maximum(self.height - rise, 0.0)

    def slope(self, future: Future) -> Float[np.ndarray, "b s n 3"]:
        """Return minus one share of the height for every particle, while some is missing."""
        missing = (self(future) > 0)[:, None, None]
        down = np.array([0.0, 0.0, -1.0])[None, None] / self.path(future).shape[2]
        return self.at_the_end(future, np.where(missing, down, 0.0))


@dataclass(frozen=True)
class Clearance(AbstractObjectCost):
    """How far the robot comes too near to an obstacle: mean of (margin - distance)+ [m].

    Attributes:
      margin: wanted distance of every kinematic point from every particle of the obstacle [m].
    """

    margin: float = 0.05

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        # Without a margin every plan would be best.
        require(0 < self.margin < np.inf, "margin", self.margin, "use more than 0 metres")

    def __call__(self, future: Future) -> Float[np.ndarray, "b"]:
        """Return the mean over steps and kinematic points."""
        points = np.asarray(future.robot.positions, np.float64)
        obstacle = self.path(future)
        costs = np.zeros(len(points))
        for plan, (robot, particles) in enumerate(zip(points, obstacle, strict=True)):
            between = np.linalg.norm(robot[:, :, None] - particles[:, None], axis=-1).min(-1)
            costs[plan] = np.maximum(self.margin - between, 0).mean()
        return costs


@dataclass(frozen=True)
class Smoothness(AbstractCost):
    """Mean squared change of the joints' steps, the first step included [rad^2 or m^2]."""

    def __call__(self, future: Future) -> Float[np.ndarray, "b"]:
        """Return the mean over steps and joints."""
        plan, joints = future.joint_targets, future.start.joints
        if plan is None or joints is None:
            raise UserError("Smoothness needs plans given as joint targets, from known joints.")
        before = np.broadcast_to(joints[None], (len(plan), *joints.shape))
        path = np.concatenate([before, plan], axis=1).astype(np.float64)
        return (np.diff(path, n=2, axis=1) ** 2).mean(axis=(1, 2))


@dataclass(frozen=True)
class GoalImage(AbstractCost):
    """Mean squared difference between the last rendered image and a wanted one, colours in [0, 1].

    Image costs mislead planners more easily than costs on particles (VP2, ICLR 2023).

    Attributes:
      camera: name of an observed camera, or another.
      image: what it should see at the end.
    """

    camera: str | Camera
    image: UInt8[np.ndarray, "h w 3"]

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        image = np.asarray(self.image)
        good = image.dtype == np.uint8 and image.ndim == 3 and image.shape[-1] == 3 and image.size
        found = str(image.dtype), image.shape
        remedy = "use colours 0..255 as uint8, axes (height, width, 3)"
        require(bool(good), "type and shape of image", found, remedy)

    @property
    def needs_images(self) -> bool:
        """True."""
        return True

    def __call__(self, future: Future) -> Float[np.ndarray, "b"]:
        """Render the last step of every plan and compare."""
        wanted = np.asarray(self.image, np.float64) / 255
        size = (wanted.shape[0], wanted.shape[1])
        costs = []
        for plan in range(future.plans or 0):
            view = future[plan].cameras_over_time(self.camera, len(future), size)[-1]
            seen = future.render_cloud(future[plan].last().current, view, size).rgb / 255
            costs.append(np.mean((seen - wanted) ** 2))
        return np.array(costs)


@dataclass(frozen=True)
class Sum(AbstractCost):
    """A weighted sum of costs.

    Attributes:
      terms: pairs of weight and cost.
    """

    terms: tuple[tuple[float, AbstractCost], ...]

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        weights = [weight for weight, _ in self.terms]
        good = bool(weights) and bool(np.isfinite(weights).all())
        require(good, "weights of terms", weights, "use one term or more, each of finite weight")

    @property
    def needs_images(self) -> bool:
        """Whether a term does."""
        return any(cost.needs_images for _, cost in self.terms)

    @property
    def goals(self) -> tuple[Sequence[float], ...]:
        """Those of the terms."""
        return tuple(goal for _, cost in self.terms for goal in cost.goals)

    def check(self, state: State) -> None:
        """Check every term."""
        for _, cost in self.terms:
            cost.check(state)

    def __call__(self, future: Future) -> Float[np.ndarray, "b"]:
        """Return the sum."""
        return np.sum([weight * cost(future) for weight, cost in self.terms], axis=0)

    def slope(self, future: Future) -> Float[np.ndarray, "b s n 3"]:
        """Return the sum of the terms' slopes."""
        return np.sum([weight * cost.slope(future) for weight, cost in self.terms], axis=0)
