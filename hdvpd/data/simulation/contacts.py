"""Tasks of the contact suite: what they draw, where the tool goes, and what must come of it.

The common tasks (push, can, sweep) touch what they reach for. These show the rest, which tells
contact from nearness:

- miss: the fingers pass a block on either side or above it, a few millimetres to centimetres away;
- glance: they strike an edge of the block with a part of their width, so that it turns;
- chain: they push the block, and the block pushes a can;
- two: block and can stand apart; one is pushed or lifted, the other stays.

A clip counts only if it came out as meant (`came_out`); otherwise it is drawn again. Lengths are
metres, world frame, the table top at z = 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hdvpd.basics.types import Float
from hdvpd.data.shapes import Shape

CONTACT_TASKS = ("miss", "glance", "chain", "two")
BLOCK = Shape("box", (0.045, 0.06, 0.045))
CAN = Shape("cylinder", (0.033, 0.06))
FINGERS_HALF_WIDTH = 0.02
"""Of both closed fingers, across the direction of a push: half opening and a finger's thickness."""
FINGERTIP_BELOW_TOOL = 0.015
TOUCHED, UNTOUCHED = 0.005, 0.001
"""How far what is struck goes at least, and what is not goes at most."""
CHAINED = 0.02
"""How far the can of a chain goes at least."""


@dataclass(frozen=True)
class Contact:
    """What a task of the suite draws before anything moves.

    Attributes:
      lifted: whether the acting arm lifts the can instead of passing or pushing the block.
      direction: unit vector in which the tool passes or pushes.
      offset: of the tool's path from the block's centre, to the left of the direction.
      height: of the tool.
      length: of the path beyond the block's centre.
      block: x, y and turn about z of the block.
      can_xy: where the can stands, if the task has one.
    """

    lifted: bool
    direction: Float[np.ndarray, "2"]
    offset: float
    height: float
    length: float
    block: tuple[float, float, float]
    can_xy: Float[np.ndarray, "2"]


def contact_objects(task: str) -> tuple[str, ...]:
    """Name the bodies of the movable objects of a task of the suite."""
    return ("block",) if task in ("miss", "glance") else ("block", "can")


def draw_contact(
    task: str, xy: Float[np.ndarray, "2"], yaw: float, rng: np.random.Generator
) -> Contact:
    """Draw a task of the suite.

    Args:
      task: of `CONTACT_TASKS`.
      xy: where the object that is acted on stands.
      yaw: the block's turn about z [rad].
      rng: draws everything else.
    """
    direction = np.array([rng.uniform(-0.2, 0.2), 1.0 if xy[1] < 0 else -1.0])
    direction /= np.linalg.norm(direction)
    left = np.array([-direction[1], direction[0]])
    side = rng.choice([-1.0, 1.0])
    across, along = _extent(yaw, left), _extent(yaw, direction)
    offset, height, length, lifted = 0.0, 0.055, rng.uniform(0.05, 0.13), False
    block, can = xy, xy
    if task == "miss":
        length = 0.15
        if rng.uniform() < 0.3:
            height = 2 * BLOCK.size[2] + FINGERTIP_BELOW_TOOL + rng.uniform(0.008, 0.03)
        else:
            offset = side * (across + FINGERS_HALF_WIDTH + rng.uniform(0.008, 0.035))
    elif task == "glance":
        length = 0.15
        offset = side * (across + FINGERS_HALF_WIDTH - rng.uniform(0.008, 0.025))
    elif task == "chain":
        offset = rng.uniform(-0.015, 0.015)
        gap = rng.uniform(0.0, 0.04)
        can = xy + (along + CAN.size[0] + 0.003 + gap) * direction + rng.uniform(-0.02, 0.02) * left
        length += gap
    else:
        lifted = bool(rng.uniform() < 0.5)
        other = xy + side * rng.uniform(0.16, 0.22) * left + rng.uniform(-0.08, 0.08) * direction
        block, can = (other, xy) if lifted else (xy, other)
    turned = (float(block[0]), float(block[1]), yaw)
    return Contact(lifted, direction, float(offset), float(height), float(length), turned, can)


def contact_path(contact: Contact) -> tuple[list[tuple[float, np.ndarray, float]], float]:
    """Return way-points of the acting arm, as (time from 0 to 1, place, opening), and its yaw."""
    direction = contact.direction
    left = np.array([-direction[1], direction[0]])
    middle = np.array(contact.block[:2]) + contact.offset * left
    begin, end = middle - 0.15 * direction, middle + (contact.length - 0.07) * direction
    way = [
        (0.0, np.r_[begin, contact.height + 0.15], 0.006),
        (0.2, np.r_[begin, contact.height], 0.006),
        (0.75, np.r_[end, contact.height], 0.006),
        (1.0, np.r_[end - 0.05 * direction, contact.height + 0.18], 0.006),
    ]
    return way, float(np.arctan2(direction[1], direction[0]))


def came_out(
    task: str, names: Sequence[str], object_to_world: Float[np.ndarray, "f o 4 4"]
) -> bool:
    """Say whether a clip shows what its task means: who was touched, and who was not.

    Args:
      task: any; of tasks that are none of the suite, every clip counts.
      names: of the objects.
      object_to_world: poses in every frame.
    """
    if task not in CONTACT_TASKS:
        return True
    shapes = {"block": BLOCK, "can": CAN}
    far = {
        name: float(shapes[name].displacement(object_to_world[:, k].astype(np.float64)).max())
        for k, name in enumerate(names)
    }
    match task:
        case "miss":
            return far["block"] <= UNTOUCHED
        case "glance":
            return far["block"] >= TOUCHED
        case "chain":
            return far["block"] >= TOUCHED and far["can"] >= CHAINED
    return min(far.values()) <= UNTOUCHED and max(far.values()) >= TOUCHED


def _extent(yaw: float, direction: np.ndarray) -> float:
    """Return half the block's extent along a horizontal direction."""
    axes = np.array([[np.cos(yaw), np.sin(yaw)], [-np.sin(yaw), np.cos(yaw)]])
    return float(np.abs(axes @ direction) @ np.array(BLOCK.size[:2]))
