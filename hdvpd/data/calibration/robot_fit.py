"""Where the robot's base really stands, and by how much its joints are off.

A kinematic point lies inside a link, at a distance from the link's surface that nobody knows but
that stays: at every moment and in every camera. Base and joints are fitted so that it does, by
Gauss-Newton over all moments, with these distances as further unknowns.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from scipy.spatial.transform import Rotation

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float
from hdvpd.data.calibration import limits
from hdvpd.data.calibration.clouds import Indexer
from hdvpd.data.calibration.robot_depth import (
    RADIUS_M,
    RADIUS_SPREAD_M,
    Seen,
    depths,
    differences,
    look,
    typical,
)
from hdvpd.data.calibration.robot_shape import settle
from hdvpd.data.calibration.signals import clearly_more
from hdvpd.data.calibration.views import Moment, some
from hdvpd.data.corrections import Corrections, JointCorrection
from hdvpd.data.kinematics import kinematic_points
from hdvpd.data.robot import Robot
from hdvpd.data.schema import RobotInfo

BASE = 6
"""Unknowns of the base: turn [rad] and move [m] about the middle of the robot, in the world."""
STARTS_M = (-0.12, 0.0, 0.12)
"""Moves along each axis with which the search begins, beside none."""
KEPT_STARTS, TURNED_STARTS = 4, 2
"""Places from which it begins, and of these the best, where the robot may turn, too."""
ROUNDS = 8
PRIOR_BASE = np.array([0.2] * 3 + [0.15] * 3)
STIFF_BASE = np.array([0.01] * 3 + [0.15] * 3)
PRIOR_JOINT = 0.15
SCATTER_M = 0.01
"""Scatter of the distances within which they count fully: links are not round."""
MOMENTS = 8
GAIN = 0.15
"""Share of the scatter that a fit must remove."""
ALIKE = 2.0
"""True errors in those that the scatter over moments and the usual radius of links give
(docs/calibration.md): links are thicker on one side at all moments."""
SIGMAS = 2.5
SAME = 0.1
"""Share of the scatter by which fits may differ and still be equally good."""
STEP_RAD = 1e-4


@dataclass(frozen=True)
class Arm:
    """What is known of a robot.

    Attributes:
      info: of the data set.
      joints: how each moves the links, with no offset (`joint_axes`); empty without a model file.
    """

    info: RobotInfo
    joints: Mapping[str, JointCorrection]


@dataclass(frozen=True)
class RobotFit:
    """What makes the robot lie where the cameras see it.

    Attributes:
      pose: multiplies link poses from the left.
      joints: by name of the joint; offsets of 0 are left out.
      turn_deg: of the base, with its standard error [degrees].
      move_m: of the middle of the robot, with its standard error [m].
      errors: standard errors of the offsets, by joint, in its unit.
      before_m: mean difference of the distances from those of their points before [m].
      after_m: and after [m].
      costs: the same by moment.
      freedom: number of unknowns.
    """

    pose: Float[np.ndarray, "4 4"]
    joints: Mapping[str, JointCorrection]
    turn_deg: tuple[float, ...]
    move_m: tuple[float, ...]
    errors: Mapping[str, float]
    before_m: float
    after_m: float
    costs: Float[np.ndarray, "m"]
    freedom: int

    @property
    def clear(self) -> bool:
        """Whether it is more than chance, and more than what is left unexplained."""
        sizes = [self.turn_deg, self.move_m]
        sizes += [(abs(joint.offset), self.errors[name]) for name, joint in self.joints.items()]
        proven = any(value > SIGMAS * error > 0 for value, error in sizes)
        return proven and self.after_m < (1 - GAIN) * self.before_m

    def apply(self, moments: Sequence[Moment], info: RobotInfo) -> list[Moment]:
        """Return the moments with the robot where it is seen."""
        found = []
        for moment in moments:
            if moment.links is None:
                found.append(moment)
                continue
            links = Corrections({}, self.pose, self.joints).links(moment.links, info.links)
            points = np.asarray(kinematic_points(links[:, :3, 3], info.skeleton))
            # Paths over time tell of clocks, which base and joints do not change.
            found.append(dataclasses.replace(moment, links=links, robot=points))
        return found


def joint_axes(robot: Robot | None) -> dict[str, JointCorrection]:
    """Say how each joint moves the links, with no offset; only joints that turn.

    Args:
      robot: model of the data set; None gives nothing, as does one that cannot be used here.
    """
    if robot is None:
        return {}
    count, found = len(robot.joints), {}
    rng = np.random.default_rng(0)
    try:
        rest = np.clip(rng.uniform(-0.3, 0.3, (2, count)), *np.nan_to_num(robot.limits).T)
        steps = rest[:, None] + np.concatenate([np.zeros((1, count)), STEP_RAD * np.eye(count)])
        links = robot.link_poses(steps)
    except UserError:
        return {}
    for column, (name, unit) in enumerate(zip(robot.joints, robot.units, strict=True)):
        motion = np.linalg.inv(links[:, 0]) @ links[:, 1 + column]
        moved = [k for k in range(len(robot.links)) if not np.allclose(motion[0, k], np.eye(4))]
        for k in moved[:1] if unit == "rad" else ():
            twists = [_twist(motion[j, k]) / STEP_RAD for j in range(2)]
            if np.allclose(*twists, atol=1e-3):
                links_moved = tuple(robot.links[m] for m in moved)
                found[name] = JointCorrection(0.0, robot.links[k], links_moved, twists[0])
    return found


def _twist(motion: Float[np.ndarray, "4 4"]) -> Float[np.ndarray, "6"]:
    generator = np.real(scipy.linalg.logm(motion))
    turn = [generator[2, 1], generator[0, 2], generator[1, 0]]
    return np.array([*turn, *generator[:3, 3]])


def fit_robot(
    moments: Sequence[Moment], arm: Arm, index: Indexer, *, far: bool = True
) -> tuple[RobotFit, ...]:
    """Fit the base, and every joint, each alone.

    Args:
      moments: what was seen, by cameras that stand right.
      arm: the robot.
      index: makes the nearest-point search.
      far: whether the base may be decimetres away.

    Returns:
      The fits that are clear, the simplest that no other beats first, with what explains as much
      after it; none without a robot model.
    """
    known = [
        m
        for m in moments
        if m.links is not None and m.robot is not None and len(m.robot) >= limits.MIN_SKELETON
    ]
    if len(known) < limits.MIN_LAG_MOMENTS:
        return ()
    problem = _Problem(some(known, MOMENTS), arm.info, index)
    fits = [problem.fit({name: joint}, base=False) for name, joint in arm.joints.items()]
    fits.append(problem.fit({}, base=True, far=far))
    clear = [fit for fit in fits if fit.clear]
    if not clear:
        return ()
    best = min(clear, key=lambda fit: fit.after_m)
    equal = [fit for fit in clear if not clearly_more(fit.costs, best.costs, SAME * best.after_m)]
    return tuple(sorted(equal, key=lambda fit: (fit.freedom, fit.after_m)))


class _Problem:
    """The robot in some moments, and how far its points are from what is seen."""

    def __init__(self, moments: Sequence[Moment], info: RobotInfo, index: Indexer) -> None:
        """Collect the link poses and the surfaces."""
        self.info = info
        self.links = np.stack([m.links for m in moments if m.links is not None])
        points = kinematic_points(self.links[..., :3, 3], info.skeleton)
        self.middle = np.median(np.asarray(points).reshape(-1, 3), axis=0)
        self.seen: list[list[Seen]] = look(moments, index)

    def fit(
        self, joints: Mapping[str, JointCorrection], *, base: bool, far: bool = True
    ) -> RobotFit:
        """Fit some joints, and the base or not."""
        size = BASE * base + len(joints)
        starts = np.zeros((1, size))
        if base and far:
            grid = np.array(list(itertools.product(STARTS_M, repeat=3)))
            moves = np.zeros((len(grid), size))
            moves[:, 3:6] = grid
            costs = [differences(self._place(x, joints, base)[0]).mean() for x in moves]
            best = np.argsort(costs)[:KEPT_STARTS]
            starts = np.concatenate([starts, moves[best]])
        if base and far:
            # Places first: turns would follow what is near, whatever it is.
            moved = [self._refine(start, joints, base, STIFF_BASE)[0] for start in starts]
            starts = sorted(
                moved, key=lambda y: differences(self._place(y, joints, base)[0]).mean()
            )
        tried = [self._refine(start, joints, base) for start in starts[:TURNED_STARTS]]
        x, error = min(tried, key=lambda t: differences(self._place(t[0], joints, base)[0]).mean())
        found = self._described(x, error, joints, base)
        if not found.clear:
            return found
        usual = np.concatenate([PRIOR_BASE[: BASE * base], [PRIOR_JOINT] * len(joints)])
        clouds = [[seen.surface.points for seen in row] for row in self.seen]
        settled = settle(lambda y: self._seen(y, joints, base), x, clouds, usual)
        better = found if settled is None else self._described(*settled, joints, base)
        return better if better.clear else found

    def _described(
        self, x: np.ndarray, error: np.ndarray, joints: Mapping[str, JointCorrection], base: bool
    ) -> RobotFit:
        """Say what unknowns and their standard errors amount to."""
        error = ALIKE * error
        before = differences(self._place(np.zeros(len(x)), joints, base)[0])
        after = differences(self._place(x, joints, base)[0])
        offsets = x[BASE * base :]
        names = list(joints)
        turn = (x[:3], error[:3]) if base else (np.zeros(3), np.zeros(3))
        move = (x[3:6], error[3:6]) if base else (np.zeros(3), np.zeros(3))
        return RobotFit(
            pose=self._pose(x) if base else np.eye(4),
            joints={
                name: dataclasses.replace(joints[name], offset=float(o))
                for name, o in zip(names, offsets, strict=True)
            },
            turn_deg=tuple(float(np.rad2deg(np.linalg.norm(v))) for v in turn),
            move_m=tuple(float(np.linalg.norm(v)) for v in move),
            errors=dict(zip(names, error[BASE * base :].tolist(), strict=True)),
            before_m=float(before.mean()),
            after_m=float(after.mean()),
            costs=after,
            freedom=len(x),
        )

    def _pose(self, x: np.ndarray) -> Float[np.ndarray, "4 4"]:
        pose = np.eye(4)
        pose[:3, :3] = Rotation.from_rotvec(x[:3]).as_matrix()
        pose[:3, 3] = self.middle - pose[:3, :3] @ self.middle + x[3:6]
        return pose

    def _place(
        self, x: np.ndarray, joints: Mapping[str, JointCorrection], base: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return signed distances (m, c, p), NaN where nothing is known, and their directions."""
        points, _ = self._seen(x, joints, base)
        return depths(points, self.seen)

    def _moved(
        self, x: np.ndarray, joints: Mapping[str, JointCorrection], base: bool
    ) -> Float[np.ndarray, "m l 4 4"]:
        """Return the poses of the links."""
        placed = {
            name: dataclasses.replace(joint, offset=float(o))
            for (name, joint), o in zip(joints.items(), x[BASE * base :], strict=True)
        }
        pose = self._pose(x) if base else np.eye(4)
        return Corrections({}, pose, placed).links(self.links, self.info.links)

    def _seen(
        self, x: np.ndarray, joints: Mapping[str, JointCorrection], base: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the points and the axes of their links (`robot_shape.Place`)."""
        links = self._moved(x, joints, base)
        points = np.asarray(kinematic_points(links[..., :3, 3], self.info.skeleton))
        return points, links[:, self.info.skeleton.links, :3, :3]

    def _refine(
        self,
        x: np.ndarray,
        joints: Mapping[str, JointCorrection],
        base: bool,
        usual: np.ndarray = PRIOR_BASE,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take Gauss-Newton steps; return the unknowns and their standard errors."""
        size = len(x)
        prior = np.concatenate([usual[: BASE * base], [PRIOR_JOINT] * (size - BASE * base)])
        error = np.zeros(size)
        for _ in range(ROUNDS):
            away, directions = self._place(x, joints, base)
            points, _ = self._seen(x, joints, base)
            moved = [self._seen(x + 1e-5 * unit, joints, base)[0] for unit in np.eye(size)]
            slopes = np.stack([(other - points) / 1e-5 for other in moved], axis=-1)
            jacobian = np.einsum("mcpi,mpik->mcpk", directions, slopes)
            radii = typical(away)
            off = away - radii
            known = np.abs(off[~np.isnan(off)])  # none where no camera sees the robot
            scale = max(SCATTER_M, 1.4826 * float(np.median(known)) if len(known) else 0.0)
            share = np.maximum(1 - np.square(np.nan_to_num(off, nan=np.inf) / (4.685 * scale)), 0)
            weights = np.square(share) / scale**2
            off = np.nan_to_num(off)
            step, error = _solve(jacobian, off, weights, radii, x / prior**2, prior)
            x = x + step
        return x, error


def _solve(
    jacobian: Float[np.ndarray, "m c p k"],
    off: Float[np.ndarray, "m c p"],
    weights: Float[np.ndarray, "m c p"],
    radii: Float[np.ndarray, "p"],
    pull: Float[np.ndarray, "k"],
    prior: Float[np.ndarray, "k"],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the step of the unknowns, the distances of the points being unknown too."""
    size, points = jacobian.shape[-1], jacobian.shape[2]
    total = np.zeros((size + points, size + points))
    weighted = weights[..., None] * jacobian
    total[:size, :size] = np.einsum("mcpk,mcpl->kl", weighted, jacobian) + np.diag(prior**-2.0)
    total[:size, size:] = -np.einsum("mcpk->kp", weighted)
    total[size:, :size] = total[:size, size:].T
    loose = RADIUS_SPREAD_M**-2.0
    total[size:, size:] = np.diag(weights.sum(axis=(0, 1)) + loose)
    gradients = np.concatenate(
        [
            np.einsum("mcpk,mcp->mk", weighted, off),
            -(weights * off).sum(axis=1),
        ],
        axis=1,
    )
    gradient = gradients.sum(axis=0)
    gradient += np.concatenate([pull, loose * (radii - RADIUS_M)])
    inverse = np.linalg.inv(total)
    count = len(gradients)
    each = gradients - gradients.mean(axis=0)
    spread = inverse @ (each.T @ each) @ inverse * count / max(count - 1, 1)
    # What only the usual radius of links tells is known no better than that.
    variance = np.maximum(np.diag(spread), 0.25 * np.diag(inverse))[:size]
    return -(inverse @ gradient)[:size], np.sqrt(variance)


def describe_robot_fit(fit: RobotFit) -> str:
    """Say what is to be changed of the robot, with its uncertainty."""
    parts = []
    if fit.move_m[0] or fit.turn_deg[0]:
        move = 100 * np.array(fit.move_m)
        parts.append(
            f"base turned by {fit.turn_deg[0]:.1f} +- {fit.turn_deg[1]:.1f} degrees, the robot's "
            f"middle moved by {move[0]:.1f} +- {move[1]:.1f} cm"
        )
    for name, joint in fit.joints.items():
        offset, error = np.rad2deg(joint.offset), np.rad2deg(fit.errors[name])
        parts.append(f"joint {name} plus {offset:.1f} +- {error:.1f} degrees")
    return ", ".join(parts)
