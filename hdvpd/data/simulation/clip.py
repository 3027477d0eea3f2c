"""One simulated clip: draw, inverse kinematics, physics, then images and poses of every frame.

A clip is a pure function of its seed. The physics runs first and keeps the generalised positions of
every frame; everything recorded (images, link poses, object poses) is computed from those states
afterwards, because a running simulation's poses lag one substep behind its positions.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError, how_to_install
from hdvpd.basics.types import Float, UInt8
from hdvpd.data import pinhole
from hdvpd.data.simulation import scene
from hdvpd.data.simulation.contacts import CONTACT_TASKS, came_out
from hdvpd.data.simulation.plan import draw_plan, joint_path, within_reach

RATE_HZ = 2.0
SETTLING_STEPS = 300
MAX_ATTEMPTS = 100
SUCCESS_DISTANCE = 0.05
"""A pushed or swept object has moved, and a can was lifted, by at least this [m]."""


def simulate_clip(task: str, *, steps: int, size: tuple[int, int], seed: Sequence[int]) -> "Clip":
    """Simulate one clip.

    Args:
      task: of `scene.TASKS` or `contacts.CONTACT_TASKS`.
      steps: control steps; frames are one more.
      size: height and width of the images [px].
      seed: numbers that decide everything.

    Returns:
      Arrays and description as `writer.write_episode` takes them.

    Raises:
      UserError: MuJoCo or a rendering backend is missing, or no draw is possible.
    """
    mujoco = load_mujoco()
    names = scene.object_names(task)
    for attempt in range(MAX_ATTEMPTS):
        rng = np.random.default_rng([*seed, attempt])
        draw = scene.draw_scene(task, rng)
        plans = draw_plan(draw, steps, rng)
        if not within_reach(plans):
            continue
        model = mujoco.MjModel.from_xml_string(scene.scene_xml(draw, *size))
        path = joint_path(model, plans)
        if path is None:
            continue
        states = run_physics(model, path)
        if states is not None and came_out(task, names, frame_poses(model, states, names)):
            return Clip(model, draw, path, states, size, attempt)
    raise UserError(
        f"No possible plan for task '{task}' with seed {list(seed)} after {MAX_ATTEMPTS} draws; "
        f"steps = {steps} may leave the arms too little time. Use more --steps or another --seed."
    )


class Clip:
    """One simulated clip: the states, and what is recorded from them.

    Attributes:
      model: compiled MuJoCo model.
      draw: what was drawn.
      path: joints commanded when every frame is reached [rad, m].
      targets: joints commanded after every frame [rad, m].
      states: generalised positions at every frame.
      size: height and width of the images [px].
      refused_draws: draws refused before: out of reach, the arms touched, or a contact of the suite
        did not come about.
    """

    def __init__(
        self,
        model: Any,
        draw: scene.SceneDraw,
        path: Float[np.ndarray, "f 16"],
        states: Float[np.ndarray, "f q"],
        size: tuple[int, int],
        refused_draws: int,
    ) -> None:
        """Keep the states; nothing is rendered yet."""
        self.model, self.draw, self.states = model, draw, states
        self.size, self.refused_draws = size, refused_draws
        self.path, self.targets = path, np.concatenate([path[1:], path[-1:]])

    def arrays(self) -> dict[str, np.ndarray]:
        """Render the images and compute every array of the episode.

        Returns:
          By path inside the episode (docs/data-format.md).

        Raises:
          UserError: no rendering backend.
        """
        joints = joint_addresses(self.model)
        commanded = with_joints(self.model, self.states, self.targets)
        links, objects = tuple(scene.link_parents()), scene.object_names(self.draw.task)
        result = {
            "time_s": np.arange(len(self.states)) / RATE_HZ,
            "robot/joint_positions": self.states[:, joints].astype(np.float32),
            "robot/joint_targets": self.targets.astype(np.float32),
            "robot/link_to_world": frame_poses(self.model, self.states, links),
            "robot/target_link_to_world": frame_poses(self.model, commanded, links),
            "truth/object_to_world": frame_poses(self.model, self.states, objects),
        }
        images = render(self.model, self.states, self.size)
        for view, name in enumerate(scene.CAMERAS):
            intrinsics, pose = camera_parameters(self.model, view, self.size)
            result[f"cameras/{name}/rgb"] = images[0][:, view]
            result[f"cameras/{name}/depth"] = images[1][:, view]
            result[f"cameras/{name}/intrinsics"] = intrinsics
            result[f"cameras/{name}/camera_to_world"] = pose
        return result


def is_reached(task: str, object_to_world: Float[np.ndarray, "f o 4 4"]) -> bool:
    """Say whether a can was lifted, or another object displaced, by `SUCCESS_DISTANCE`.

    Every clip of the contact suite succeeds, because others are drawn again.
    """
    if task in CONTACT_TASKS:
        return True
    moved = object_to_world[:, :, :3, 3] - object_to_world[:1, :, :3, 3]
    if task == "can":
        distance = moved[..., 2].max()
    else:
        distance = np.linalg.norm(moved[-1, :, :2], axis=-1).max()
    return bool(distance >= SUCCESS_DISTANCE)


def frame_poses(
    model: Any, states: Float[np.ndarray, "f q"], frames: Sequence[str]
) -> Float[np.ndarray, "f l 4 4"]:
    """Forward kinematics of named bodies and sites: poses in the world frame [m]."""
    mujoco = load_mujoco()
    data = mujoco.MjData(model)
    bodies = {model.body(b).name: b for b in range(model.nbody)}
    sites = {model.site(s).name: s for s in range(model.nsite)}
    poses = np.zeros((len(states), len(frames), 4, 4), np.float32)
    poses[..., 3, 3] = 1.0
    for f, state in enumerate(states):
        data.qpos[:] = state
        mujoco.mj_kinematics(model, data)
        for k, name in enumerate(frames):
            if name in bodies:
                place, rotation = data.xpos[bodies[name]], data.xmat[bodies[name]]
            else:
                place, rotation = data.site_xpos[sites[name]], data.site_xmat[sites[name]]
            poses[f, k, :3, :3], poses[f, k, :3, 3] = rotation.reshape(3, 3), place
    return poses


def joint_addresses(model: Any) -> list[int]:
    """Return where the joints of `scene.joint_names` lie in a model's generalised positions."""
    names = [n + "_l" if n.endswith("grip") else n for n in scene.joint_names()]
    return [int(model.joint(n).qposadr[0]) for n in names]


def with_joints(
    model: Any, states: Float[np.ndarray, "f q"], joints: Float[np.ndarray, "f j"]
) -> Float[np.ndarray, "f q"]:
    """Replace the joints in generalised positions.

    Returns:
      The positions with both fingers of a gripper at its opening.
    """
    result = states.copy()
    result[:, joint_addresses(model)] = joints
    for arm in scene.ARMS:
        left, right = (int(model.joint(f"{arm}_grip_{side}").qposadr[0]) for side in "lr")
        result[:, right] = result[:, left]
    return result


def camera_parameters(
    model: Any, view: int, size: tuple[int, int]
) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "4 4"]]:
    """Return the calibration of a camera of the scene.

    Returns:
      Intrinsics [px] and camera-to-world pose with OpenCV axes.
    """
    mujoco = load_mujoco()
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    mujoco.mj_camlight(model, data)
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = data.cam_xmat[view].reshape(3, 3), data.cam_xpos[view]
    # MuJoCo's cameras look along -z with y up, as OpenGL's do.
    intrinsics = pinhole.intrinsics_of(np.deg2rad(model.cam_fovy[view]), size)
    return intrinsics, pose @ pinhole.AXES["opengl"]


def render(
    model: Any, states: Float[np.ndarray, "f q"], size: tuple[int, int]
) -> tuple[UInt8[np.ndarray, "f v h w 3"], Float[np.ndarray, "f v h w"]]:
    """Render every camera at every state.

    Returns:
      Colours and planar depth [m], 0 where nothing is hit.

    Raises:
      UserError: no rendering backend.
    """
    mujoco = load_mujoco()
    height, width = size
    views = range(len(scene.CAMERAS))
    rgb = np.zeros((len(states), len(views), height, width, 3), np.uint8)
    depth_m = np.zeros((len(states), len(views), height, width), np.float32)
    data = mujoco.MjData(model)
    try:
        renderer = mujoco.Renderer(model, height, width)
    except Exception as error:
        raise _no_backend(error) from error
    with renderer:
        for f, state in enumerate(states):
            data.qpos[:] = state
            mujoco.mj_forward(model, data)
            # Both colour images, then both depth images: switching modes costs 10-20 ms.
            for view in views:
                renderer.update_scene(data, scene.CAMERAS[view])
                rgb[f, view] = renderer.render()
            renderer.enable_depth_rendering()
            for view in views:
                renderer.update_scene(data, scene.CAMERAS[view])
                depth_m[f, view] = renderer.render()
            renderer.disable_depth_rendering()
    # Where a ray meets nothing, the depth buffer holds the far clipping plane.
    far = model.vis.map.zfar * model.stat.extent
    return rgb, np.where(depth_m < 0.999 * far, depth_m, np.float32(0))


def run_physics(model: Any, path: np.ndarray) -> Float[np.ndarray, "f q"] | None:
    """Follow joint targets: settle at the first, then move linearly to the next in every step.

    Returns:
      Generalised positions at every frame; None if the arms touch each other.
    """
    return follow(model, settle(model, path[0]), path)


def settle(model: Any, joints: Float[np.ndarray, "j"]) -> Any:
    """Return MuJoCo's state after the arms have come to rest at joint targets."""
    mujoco = load_mujoco()
    data = mujoco.MjData(model)
    data.qpos[:] = with_joints(model, data.qpos[None], joints[None])[0]
    data.ctrl[:] = joints
    for _ in range(SETTLING_STEPS):
        mujoco.mj_step(model, data)
    return data


def follow(model: Any, data: Any, path: Float[np.ndarray, "f j"]) -> np.ndarray | None:
    """Move on from a state, linearly from each row of joint targets to the next in a control step.

    Args:
      model: compiled MuJoCo model of the scene.
      data: MuJoCo's state; it is moved on.
      path: joint targets, the first those that the state was reached with.

    Returns:
      Generalised positions before the first and after every step; None if the arms touch.
    """
    mujoco = load_mujoco()
    arm_of_geom = _arm_of_geom(model)
    substeps = round(1 / RATE_HZ / model.opt.timestep)
    states = [data.qpos.copy()]
    for before, target in itertools.pairwise(path):
        for k in range(substeps):
            data.ctrl[:] = before + (target - before) * (k + 1) / substeps
            mujoco.mj_step(model, data)
            if data.ncon and (arm_of_geom[data.contact.geom].prod(axis=1) < 0).any():
                return None
        states.append(data.qpos.copy())
    return np.array(states)


def full_state(model: Any, data: Any) -> Float[np.ndarray, "z"]:
    """Copy everything that decides how a simulation goes on."""
    mujoco = load_mujoco()
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(model, kind))
    mujoco.mj_getState(model, data, state, kind)
    return state


def restored(model: Any, state: Float[np.ndarray, "z"]) -> Any:
    """Return MuJoCo's state from a copy made by `full_state`."""
    mujoco = load_mujoco()
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return data


def _arm_of_geom(model: Any) -> np.ndarray:
    sign = {"L_": 1, "R_": -1}
    return np.array([sign.get(model.body(int(b)).name[:2], 0) for b in model.geom_bodyid], np.int64)


def load_mujoco() -> Any:
    """Import MuJoCo with a rendering backend chosen.

    Raises:
      UserError: it is not installed, or the backend's system library is missing.
    """
    os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        import mujoco
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("mujoco"):
            raise UserError(
                f"Simulation needs MuJoCo, which is not installed: {how_to_install('sim')}."
            ) from error
        raise _no_backend(error) from error
    except Exception as error:  # PyOpenGL raises what it likes when a system library is missing
        raise _no_backend(error) from error
    return mujoco


def check_rendering() -> str:
    """Render one tiny image; return MuJoCo's version and the rendering backend, for people.

    Raises:
      UserError: MuJoCo or a rendering backend is missing; it names the remedy.
    """
    mujoco = load_mujoco()
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    try:
        with mujoco.Renderer(model, 16, 16) as renderer:
            renderer.update_scene(mujoco.MjData(model))
            renderer.render()
    except Exception as error:
        raise _no_backend(error) from error
    return f"mujoco {mujoco.__version__}, MUJOCO_GL={os.environ['MUJOCO_GL']}"


def _no_backend(error: Exception) -> UserError:
    backend = os.environ.get("MUJOCO_GL", "egl")
    return UserError(
        f"MuJoCo cannot render with MUJOCO_GL={backend} ({type(error).__name__}: {error}). On "
        "Debian or Ubuntu run `apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri libgl1` for "
        "MUJOCO_GL=egl, or `apt-get install libosmesa6` for MUJOCO_GL=osmesa."
    )
