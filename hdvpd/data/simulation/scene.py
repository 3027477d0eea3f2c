"""The simulated scene as MJCF text: two iiwa-14-like arms at a table, lights, cameras, objects.

Everything is built from primitives (no meshes, no downloads) with the real arm's joint offsets,
joint limits and torque limits. Lengths are metres, angles radians; the world frame stands on the
table top with z up, and both arms face +x. Nothing here imports MuJoCo.
"""

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np

from hdvpd.basics.types import Float
from hdvpd.data.pinhole import looking_at
from hdvpd.data.shapes import Shape
from hdvpd.data.simulation.contacts import (
    BLOCK,
    CAN,
    CONTACT_TASKS,
    Contact,
    contact_objects,
    draw_contact,
)

ARMS = ("L", "R")
BASES = {"L": (-0.60, 0.33, -0.02), "R": (-0.60, -0.33, -0.02)}
JOINTS_PER_ARM = 7
OFFSETS = (0.1575, 0.2025, 0.2045, 0.2155, 0.1845, 0.2155, 0.081)
"""Height of each joint's frame above the previous one [m]."""
_Y, _Z = (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
AXES = (_Z, _Y, _Z, (0.0, -1.0, 0.0), _Z, _Y, _Z)
LIMITS = tuple(np.deg2rad([170, 120, 170, 120, 170, 120, 175]).tolist())
TORQUES = (320.0, 320.0, 176.0, 176.0, 110.0, 40.0, 40.0)
GAINS = (1200, 1200, 900, 900, 500, 300, 150)
MASSES = (5.8, 5.5, 3.9, 3.6, 2.4, 2.1, 0.5)
RADII = (0.070, 0.068, 0.062, 0.060, 0.055, 0.050, 0.038)
HOME = (0.0, 0.55, 0.0, -1.55, 0.0, 1.04, 0.0)
"""Joints of the posture the arms are drawn to: gripper down, elbow up."""
HAND_OFFSET = 0.05
TOOL_OFFSET = 0.155
"""Tool centre above the hand's frame."""
FINGER_OFFSET = 0.06
FINGERTIP_OFFSET = 0.11
OPENING_RANGE = (0.005, 0.05)
"""Half the distance between the fingers [m]."""
CAMERAS = ("cam0", "cam1")
CAMERA_POSITIONS = ((1.12, -0.66, 0.92), (1.00, 0.84, 0.78))
CAMERA_TARGET = (-0.14, 0.0, 0.14)
FIELD_OF_VIEW_DEG = 46.0
WORKSPACE_MIN = (-0.75, -0.8, -0.05)
WORKSPACE_MAX = (0.6, 0.8, 1.0)
"""Keeps table, objects and arms up to their bases; floor and wall are outside."""
TASKS = ("push", "can", "sweep")
"""The common tasks; `contacts.CONTACT_TASKS` are the others."""
CUBE = Shape("box", (0.018, 0.018, 0.018))
NUM_CUBES = 6
NUM_COLORS = 8


@dataclass(frozen=True)
class SceneDraw:
    """What differs between clips of a task before anything moves.

    Attributes:
      task: of `TASKS` or `contacts.CONTACT_TASKS`.
      object_xy: where the object stands [m].
      object_yaw: its turn about z [rad].
      cubes_xy: where the cubes of the sweep task are dropped [m].
      colors: of the objects, in [0, 1].
      camera_jitter: offset of each camera [m].
      contact: what a task of the contact suite draws besides.
    """

    task: str
    object_xy: Float[np.ndarray, "2"]
    object_yaw: float
    cubes_xy: Float[np.ndarray, "cubes 2"]
    colors: Float[np.ndarray, "colors 3"]
    camera_jitter: Float[np.ndarray, "v 3"]
    contact: Contact | None = None


def draw_scene(task: str, rng: np.random.Generator) -> SceneDraw:
    """Draw a start: where the object stands, its colours and the cameras' jitter."""
    colors = rng.uniform(0.15, 0.95, (NUM_COLORS, 3)).round(2)
    object_xy = rng.uniform([-0.07, -0.10], [0.10, 0.10])
    draw = SceneDraw(
        task=task,
        object_xy=object_xy,
        object_yaw=float(rng.uniform(-0.5, 0.5)),
        cubes_xy=object_xy[None] + rng.uniform(-0.05, 0.05, (NUM_CUBES, 2)),
        colors=colors,
        camera_jitter=rng.uniform(-0.03, 0.03, (len(CAMERAS), 3)),
    )
    if task not in CONTACT_TASKS:
        return draw
    return dataclasses.replace(draw, contact=draw_contact(task, object_xy, draw.object_yaw, rng))


def object_names(task: str) -> tuple[str, ...]:
    """Name the bodies of the movable objects of a task."""
    if task in CONTACT_TASKS:
        return contact_objects(task)
    cubes = tuple(f"cube{k}" for k in range(NUM_CUBES))
    return {"push": ("block",), "can": ("can",), "sweep": cubes}[task]


def object_shape(name: str) -> Shape:
    """Return the shape of a movable object by the name of its body."""
    return {"block": BLOCK, "can": CAN}.get(name, CUBE)


def object_colors(draw: SceneDraw) -> dict[str, Float[np.ndarray, "3"]]:
    """Return the colours of the movable objects by the names of their bodies, in [0, 1].

    The one after a block's or a can's is that of its stripe.
    """
    names = object_names(draw.task)
    step = 2 if draw.task in CONTACT_TASKS else 1
    return {name: draw.colors[step * k] for k, name in enumerate(names)}


def joint_names() -> tuple[str, ...]:
    """Name the 16 joints of command and state: 7 joints and finger opening, left then right."""
    return tuple(
        name for arm in ARMS for name in (*(f"{arm}_j{i + 1}" for i in range(7)), f"{arm}_grip")
    )


def link_parents() -> dict[str, str | None]:
    """Name the 28 link frames with the frame each is fixed to or hinged on.

    Returns:
      Parents by name; fingertips and tool centres are frames without a body.
    """
    parents: dict[str, str | None] = {}
    for arm in ARMS:
        chain = [f"{arm}_base", *(f"{arm}_link{i + 1}" for i in range(JOINTS_PER_ARM))]
        chain.append(f"{arm}_hand")
        parents.update(zip(chain, [None, *chain[:-1]], strict=True))
        parents[f"{arm}_tcp"] = f"{arm}_hand"
        for side in "lr":
            parents[f"{arm}_finger_{side}"] = f"{arm}_hand"
            parents[f"{arm}_tip_{side}"] = f"{arm}_finger_{side}"
    return parents


def robot_description() -> dict[str, object]:
    """Describe the robot for dataset.json (docs/data-format.md)."""
    arm_of = {"L": "left", "R": "right"}
    points, segments = [], []
    for arm in ARMS:
        joints = [f"{arm}_link{i + 1}" for i in range(JOINTS_PER_ARM)]
        points += [*joints, f"{arm}_tcp", f"{arm}_tip_l", f"{arm}_tip_r"]
        chain = [f"{arm}_base", *joints, f"{arm}_tcp"]
        segments += [[a, b] for a, b in itertools.pairwise(chain)]
    return {
        "name": "bimanual-iiwa14-like",
        "joints": [
            {"name": n, "unit": "m" if n.endswith("grip") else "rad", "arm": arm_of[n[0]]}
            for n in joint_names()
        ],
        "links": [
            {"name": n, "arm": arm_of[n[0]]} | ({"parent": p} if p else {})
            for n, p in link_parents().items()
        ],
        "skeleton": {
            "points": points,
            "segments": segments,
            "arms": {arm_of[arm]: {"gripper": f"{arm}_grip"} for arm in ARMS},
        },
    }


def robot_xml() -> str:
    """Write the two arms alone, as MJCF."""
    return f"""<mujoco model="bimanual"><compiler angle="radian" autolimits="true"/>
<default><default class="arm"/></default>
<worldbody>{_arm_xml("L")}{_arm_xml("R")}</worldbody></mujoco>"""


def joint_moves() -> tuple[dict[str, tuple[float, float]], ...]:
    """Say for every joint of `joint_names` which hinges or slides follow it, factor and offset."""
    return tuple(
        {f"{name}_{side}": (1.0, 0.0) for side in "lr"} if name.endswith("grip")
        else {name: (1.0, 0.0)}
        for name in joint_names()
    )  # fmt: skip


def scene_xml(draw: SceneDraw, height: int, width: int) -> str:
    """Write the scene of one clip, for images of a height and width [px], as MJCF."""
    return f"""<mujoco model="bimanual">
<compiler angle="radian" autolimits="true"/>
<option timestep="0.002" integrator="implicitfast" cone="elliptic" impratio="10"/>
<statistic extent="1.5" center="0 0 0.3"/>
<visual>
  <global offwidth="{max(width, 640)}" offheight="{max(height, 480)}"/>
  <map znear="0.08" zfar="8"/>
  <quality shadowsize="1024" offsamples="4"/>
  <headlight ambient="0.35 0.35 0.35" diffuse="0.35 0.35 0.35" specular="0.1 0.1 0.1"/>
</visual>
<default><default class="arm">
  <joint damping="1.0" armature="0.1"/><geom friction="1 0.01 0.001"/>
</default></default>
{_ASSETS}
<worldbody>
{_WORLD}
{_arm_xml("L")}
{_arm_xml("R")}
{_objects_xml(draw)}
{_cameras_xml(draw)}
</worldbody>
<contact>{_exclusions_xml()}</contact>
<equality>{_equalities_xml()}</equality>
<actuator>{_actuators_xml()}</actuator>
</mujoco>"""


_ASSETS = """<asset>
<material name="grey" rgba="0.72 0.73 0.74 1" specular="0.5" shininess="0.4"/>
<material name="orange" rgba="0.93 0.42 0.05 1" specular="0.4" shininess="0.4"/>
<material name="dark" rgba="0.13 0.13 0.15 1" specular="0.3" shininess="0.4"/>
<material name="light" rgba="0.45 0.46 0.5 1" specular="0.5" shininess="0.4"/>
<texture name="sky" type="skybox" builtin="gradient" rgb1="0.75 0.8 0.86" rgb2="0.35 0.4 0.46"
 width="64" height="64"/>
<texture name="checker" type="2d" builtin="checker" rgb1="0.33 0.35 0.37" rgb2="0.4 0.42 0.44"
 width="128" height="128"/>
<texture name="wood" type="2d" builtin="flat" mark="random" random="0.25" rgb1="0.62 0.49 0.34"
 markrgb="0.52 0.39 0.26" width="256" height="256"/>
<material name="floor" texture="checker" texrepeat="10 10"/>
<material name="table" texture="wood" texuniform="false" specular="0.1"/>
</asset>"""

# The light is oblique because a steep one leaves shadow acne (black dots) on the table.
_WORLD = """<light pos="1.6 -1.2 2.2" dir="-0.62 0.47 -1" type="spot" diffuse="0.7 0.7 0.7"
 castshadow="true"/>
<geom name="floor" type="plane" size="4 4 0.1" pos="0 0 -0.75" material="floor"/>
<geom name="wall" type="box" size="0.05 3 1.5" pos="-1.6 0 0.7" rgba="0.6 0.63 0.66 1"/>
<geom name="table" type="box" size="0.53 0.75 0.02" pos="0.02 0 -0.02" material="table"
 friction="0.8 0.01 0.001"/>
<geom name="pedestal" type="box" size="0.16 0.6 0.35" pos="-0.72 0 -0.37" rgba="0.2 0.2 0.22 1"/>"""


def _numbers(*values: float) -> str:
    # repr keeps every digit: rounding here would move objects between writer and reader.
    return " ".join(repr(float(v)) for v in values)


def _arm_xml(arm: str) -> str:
    text = f"""<body name="{arm}_base" pos="{_numbers(*BASES[arm])}" childclass="arm">
<geom type="cylinder" size="0.085 0.05" pos="0 0 0.05" material="dark"/>
<geom type="cylinder" size="0.072 0.035" pos="0 0 0.125" material="grey"/>
"""
    for i in range(JOINTS_PER_ARM):
        text += _link_xml(arm, i)
    return text + _hand_xml(arm) + "</body>" * (JOINTS_PER_ARM + 1)


def _link_xml(arm: str, i: int) -> str:
    above = OFFSETS[i + 1] if i + 1 < JOINTS_PER_ARM else 0.045
    mass, radius = MASSES[i], RADII[i]
    inertia = _numbers(0.012 * mass, 0.012 * mass, 0.005 * mass)
    text = f"""<body name="{arm}_link{i + 1}" pos="0 0 {OFFSETS[i]}" gravcomp="1">
<joint name="{arm}_j{i + 1}" axis="{_numbers(*AXES[i])}" range="{_numbers(-LIMITS[i], LIMITS[i])}"/>
<inertial pos="0 0 {above / 2}" mass="{mass}" diaginertia="{inertia}"/>
"""
    if i == JOINTS_PER_ARM - 1:
        return text + (
            f'<geom type="cylinder" size="{radius} 0.02" pos="0 0 0.03" material="orange"/>\n'
        )
    if i % 2:  # hinges across the arm: a wide cylinder reads as the cover of the joint
        return text + (
            f'<geom type="capsule" size="{radius}" fromto="0 0 0 0 0 {above - 0.03}" '
            'material="grey"/>\n<geom type="cylinder" euler="1.5708 0 0" material="orange" '
            f'size="{_numbers(0.82 * radius, 1.16 * radius)}"/>\n'
        )
    return text + (
        f'<geom type="capsule" size="{radius}" fromto="0 0 0.01 0 0 {above - 0.02}" '
        f'material="grey"/>\n<geom type="cylinder" size="{_numbers(1.06 * radius, 0.012)}" '
        'pos="0 0 0.02" material="orange"/>\n'
    )


def _hand_xml(arm: str) -> str:
    text = f"""<body name="{arm}_hand" pos="0 0 {HAND_OFFSET}" gravcomp="1">
<inertial pos="0 0 0.04" mass="0.7" diaginertia="0.002 0.002 0.001"/>
<geom type="box" size="0.035 0.075 0.03" pos="0 0 0.03" material="dark"/>
<site name="{arm}_tcp" pos="0 0 {TOOL_OFFSET}" size="0.004" rgba="1 0 0 0"/>
"""
    for side, sign in (("l", 1), ("r", -1)):
        text += f"""<body name="{arm}_finger_{side}" pos="0 0 {FINGER_OFFSET}" gravcomp="1">
<inertial pos="0 0 0.05" mass="0.08" diaginertia="1e-4 1e-4 1e-4"/>
<joint name="{arm}_grip_{side}" type="slide" axis="0 {sign} 0" range="{_numbers(*OPENING_RANGE)}"
 damping="8" frictionloss="0" armature="0.02"/>
<geom type="box" size="0.014 0.007 0.055" pos="0 {sign * 0.007} 0.055" material="light"
 friction="1.6 0.02 0.0005" condim="4" solref="0.006 1"/>
<site name="{arm}_tip_{side}" pos="0 {sign * 0.007} {FINGERTIP_OFFSET}" size="0.004"
 rgba="1 0 0 0"/>
</body>
"""
    return text + "</body>"


def _objects_xml(draw: SceneDraw) -> str:
    colors = [_numbers(*c.tolist(), 1.0) for c in draw.colors]
    x, y = draw.object_xy.tolist()
    if draw.contact is not None:
        text = _block_xml(*draw.contact.block, *colors[:2])
        if len(object_names(draw.task)) > 1:
            text += _can_xml(*draw.contact.can_xy.tolist(), *colors[2:4])
        return text
    if draw.task == "push":
        return _block_xml(x, y, draw.object_yaw, *colors[:2])
    if draw.task == "can":
        return _can_xml(x, y, *colors[:2])
    return "".join(
        f'<body name="cube{k}" pos="{_numbers(*xy.tolist(), 0.02 + 0.045 * k)}"><freejoint/>'
        f'<geom type="box" size="{_numbers(*CUBE.size)}" mass="0.04" rgba="{colors[k]}" '
        'friction="0.6 0.01 0.001"/></body>'
        for k, xy in enumerate(draw.cubes_xy)
    )


# Stripes are looks only: they neither touch nor weigh anything.
_LOOK = 'contype="0" conaffinity="0" mass="0.001"'


def _block_xml(x: float, y: float, yaw: float, color: str, stripe: str) -> str:
    return f"""<body name="block" pos="{_numbers(x, y, BLOCK.size[2])}"
 euler="{_numbers(0.0, 0.0, yaw)}"><freejoint/>
<geom type="box" size="{_numbers(*BLOCK.size)}" mass="0.3" rgba="{color}"
 friction="0.6 0.01 0.001"/>
<geom type="box" size="0.0452 0.014 0.0452" rgba="{stripe}" {_LOOK}/></body>"""


def _can_xml(x: float, y: float, color: str, stripe: str) -> str:
    return f"""<body name="can" pos="{_numbers(x, y, CAN.size[1])}"><freejoint/>
<geom type="cylinder" size="{_numbers(*CAN.size)}" mass="0.15" rgba="{color}"
 friction="1.2 0.02 0.001" condim="4"/>
<geom type="cylinder" size="0.0334 0.02" rgba="{stripe}" {_LOOK}/>
<geom type="cylinder" size="0.028 0.061" rgba="0.8 0.8 0.82 1" {_LOOK}/></body>"""


def _cameras_xml(draw: SceneDraw) -> str:
    text = ""
    for name, place, jitter in zip(CAMERAS, CAMERA_POSITIONS, draw.camera_jitter, strict=True):
        position = np.array(place) + jitter
        right, down, _ = looking_at(position, CAMERA_TARGET)[:3, :3].T
        text += (
            f'<camera name="{name}" mode="fixed" pos="{_numbers(*position)}" '
            f'xyaxes="{_numbers(*right, *-down)}" fovy="{FIELD_OF_VIEW_DEG}"/>'
        )
    return text


def _exclusions_xml() -> str:
    pairs = []
    for arm in ARMS:
        pairs += [(f"{arm}_base", f"{arm}_link{i}") for i in (1, 2)]
        pairs += [
            (f"{arm}_link{i}", f"{arm}_link{j}")
            for i in range(1, JOINTS_PER_ARM)
            for j in range(i + 1, min(i + 2, JOINTS_PER_ARM) + 1)
        ]
    return "".join(f'<exclude body1="{a}" body2="{b}"/>' for a, b in pairs)


def _equalities_xml() -> str:
    return "".join(
        f'<joint joint1="{arm}_grip_l" joint2="{arm}_grip_r" polycoef="0 1 0 0 0" '
        'solref="0.004 1"/>'
        for arm in ARMS
    )


def _actuators_xml() -> str:
    text = ""
    for arm in ARMS:
        for i in range(JOINTS_PER_ARM):
            text += (
                f'<position name="{arm}_a{i + 1}" joint="{arm}_j{i + 1}" kp="{GAINS[i]}" '
                f'dampratio="1" forcerange="{_numbers(-TORQUES[i], TORQUES[i])}" '
                f'ctrlrange="{_numbers(-LIMITS[i], LIMITS[i])}"/>'
            )
        text += (
            f'<position name="{arm}_agrip" joint="{arm}_grip_l" kp="900" dampratio="1" '
            f'forcerange="-60 60" ctrlrange="{_numbers(*OPENING_RANGE)}"/>'
        )
    return text
