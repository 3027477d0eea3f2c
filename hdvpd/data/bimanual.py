"""Simulating the bimanual scene: physics, cameras, and the workers that write a data set.

An episode is a pure function of (seed, number): a scene and a plan are drawn, the physics runs,
the states are rendered. A draw that is out of reach or makes the arms touch is drawn again. So
episodes can be written in any order by any number of processes, and an interrupted data set is
completed by the same command with the same bytes.
"""

import concurrent.futures
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hdvpd
from hdvpd.array_typing import Float
from hdvpd.data import bimanual_scene as scene
from hdvpd.data import schema, writer
from hdvpd.data.bimanual_plan import draw_plan, joint_path, within_reach
from hdvpd.errors import UserError

RATE_HZ = 2.0
SETTLING_STEPS = 300
MAX_ATTEMPTS = 100
SUCCESS_DISTANCE = 0.05
"""A pushed or swept object has moved, and a can was lifted, by at least this [m]."""


def simulate(
    out: str | Path,
    *,
    episodes: int,
    steps: int = 20,
    tasks: Sequence[str] = scene.TASKS,
    size: tuple[int, int] = (96, 128),
    seed: int = 0,
    workers: int = 1,
) -> None:
    """Write a data set of simulated clips, or complete one that was interrupted.

    Args:
      out: folder of the data set.
      episodes: in the data set when done.
      steps: control steps per episode; frames are one more.
      tasks: any of push, can and sweep, taken in turn.
      size: height and width of the images [px].
      seed: the same seed gives the same bytes, whatever the number of workers.
      workers: processes.

    Raises:
      UserError: an impossible argument, another data set in `out`, no rendering backend, or a
        disk that is full.
    """
    out, tasks = Path(out), tuple(tasks)
    _check_arguments(episodes, steps, tasks, size, seed, workers)
    _prepare_rendering(workers)
    description = _describe(episodes, steps, tasks, size, seed)
    _begin(out, description, episodes)
    writer.clear_partial_episodes(out)
    done = set(writer.finished_episodes(out))
    jobs = [
        (out, n, episodes, steps, tasks[(n + n // 10) % len(tasks)], size, seed)
        for n in range(episodes)
        if n not in done
    ]
    if workers == 1 or len(jobs) <= 1:
        for job in jobs:
            _write_clip(*job)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = [pool.submit(_write_clip, *job) for job in jobs]
        for future in concurrent.futures.as_completed(futures):
            future.result()


def simulate_clip(task: str, *, steps: int, size: tuple[int, int], seed: Sequence[int]) -> "Clip":
    """Simulate one clip.

    Args:
      task: push, can or sweep.
      steps: control steps; frames are one more.
      size: height and width of the images [px].
      seed: numbers that decide everything.

    Returns:
      Arrays and description as `writer.write_episode` takes them.

    Raises:
      UserError: MuJoCo or a rendering backend is missing, or no draw is possible.
    """
    import mujoco

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
        states = _run_physics(model, path)
        if states is not None:
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
      targets: joints commanded after every frame [rad, m].
      states: generalised positions at every frame.
      size: height and width of the images [px].
      attempt: draws that were refused before.
    """

    def __init__(
        self,
        model: Any,
        draw: scene.SceneDraw,
        path: Float[np.ndarray, "f 16"],
        states: Float[np.ndarray, "f q"],
        size: tuple[int, int],
        attempt: int,
    ) -> None:
        """Keep the states; nothing is rendered yet."""
        self.model, self.draw, self.states = model, draw, states
        self.size, self.attempt = size, attempt
        self.targets = np.concatenate([path[1:], path[-1:]])

    def arrays(self) -> dict[str, np.ndarray]:
        """Render the images and compute every array of the episode.

        Returns:
          By path inside the episode (docs/data-format.md).

        Raises:
          UserError: no rendering backend.
        """
        joints = joint_addresses(self.model)
        commanded = self.states.copy()
        commanded[:, joints] = self.targets
        for arm in scene.ARMS:  # the second finger mirrors the first
            left, right = (self.model.joint(f"{arm}_grip_{s}").qposadr[0] for s in "lr")
            commanded[:, right] = commanded[:, left]
        objects = scene.object_names(self.draw.task)
        result = {
            "time_s": np.arange(len(self.states)) / RATE_HZ,
            "robot/joint_positions": self.states[:, joints].astype(np.float32),
            "robot/joint_targets": self.targets.astype(np.float32),
            "robot/link_to_world": self._poses(self.states, tuple(scene.link_parents())),
            "robot/target_link_to_world": self._poses(commanded, tuple(scene.link_parents())),
            "truth/object_to_world": self._poses(self.states, objects),
        }
        images = render(self.model, self.states, self.size)
        for view, name in enumerate(scene.CAMERAS):
            intrinsics, pose = camera_parameters(self.model, view, self.size)
            result[f"cameras/{name}/rgb"] = images[0][:, view]
            result[f"cameras/{name}/depth"] = images[1][:, view]
            result[f"cameras/{name}/intrinsics"] = intrinsics
            result[f"cameras/{name}/camera_to_world"] = pose
        return result

    def success(self, object_to_world: Float[np.ndarray, "f o 4 4"]) -> bool:
        """Say whether the task was reached.

        Args:
          object_to_world: poses of the objects.

        Returns:
          Whether a can was lifted, or another object displaced, by `SUCCESS_DISTANCE`.
        """
        moved = object_to_world[:, :, :3, 3] - object_to_world[:1, :, :3, 3]
        if self.draw.task == "can":
            distance = moved[..., 2].max()
        else:
            distance = np.linalg.norm(moved[-1, :, :2], axis=-1).max()
        return bool(distance >= SUCCESS_DISTANCE)

    def _poses(
        self, states: np.ndarray, frames: tuple[str, ...]
    ) -> Float[np.ndarray, "f l 4 4"]:
        import mujoco

        data = mujoco.MjData(self.model)
        bodies = {self.model.body(b).name: b for b in range(self.model.nbody)}
        sites = {self.model.site(s).name: s for s in range(self.model.nsite)}
        poses = np.zeros((len(states), len(frames), 4, 4), np.float32)
        poses[..., 3, 3] = 1.0
        for f, state in enumerate(states):
            data.qpos[:] = state
            mujoco.mj_kinematics(self.model, data)
            for k, name in enumerate(frames):
                body = bodies.get(name)
                rotation = data.site_xmat[sites[name]] if body is None else data.xmat[body]
                place = data.site_xpos[sites[name]] if body is None else data.xpos[body]
                poses[f, k, :3, :3], poses[f, k, :3, 3] = rotation.reshape(3, 3), place
        return poses


def joint_addresses(model: Any) -> list[int]:
    """Return where the joints of `scene.joint_names` lie in a model's generalised positions.

    Args:
      model: compiled MuJoCo model of the scene.

    Returns:
      Indices; the gripper's is its first finger's.
    """
    names = [n + "_l" if n.endswith("grip") else n for n in scene.joint_names()]
    return [int(model.joint(n).qposadr[0]) for n in names]


def camera_parameters(
    model: Any, view: int, size: tuple[int, int]
) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "4 4"]]:
    """Return the calibration of a camera of the scene.

    Args:
      model: compiled MuJoCo model of the scene.
      view: number of the camera.
      size: height and width of the images [px].

    Returns:
      Intrinsics [px] and camera-to-world pose with OpenCV axes.
    """
    import mujoco

    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    mujoco.mj_camlight(model, data)
    height, width = size
    focal = 0.5 * height / np.tan(0.5 * np.deg2rad(model.cam_fovy[view]))
    intrinsics = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    pose = np.eye(4)
    # MuJoCo's cameras look along -z with y up.
    pose[:3, :3] = data.cam_xmat[view].reshape(3, 3) @ np.diag([1.0, -1.0, -1.0])
    pose[:3, 3] = data.cam_xpos[view]
    return intrinsics, pose


def render(
    model: Any, states: Float[np.ndarray, "f q"], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Render every camera at every state.

    Args:
      model: compiled MuJoCo model of the scene.
      states: generalised positions.
      size: height and width of the images [px].

    Returns:
      Colours (f v h w 3) and planar depth (f v h w) [m].

    Raises:
      UserError: no rendering backend.
    """
    import mujoco

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
    return rgb, depth_m


def _run_physics(model: Any, path: np.ndarray) -> Float[np.ndarray, "f q"] | None:
    """Follow the joint targets; None if the arms touch each other."""
    import mujoco

    data = mujoco.MjData(model)
    joints = joint_addresses(model)
    data.qpos[joints] = path[0]
    for arm in scene.ARMS:
        left, right = (int(model.joint(f"{arm}_grip_{s}").qposadr[0]) for s in "lr")
        data.qpos[right] = data.qpos[left]
    data.ctrl[:] = path[0]
    for _ in range(SETTLING_STEPS):
        mujoco.mj_step(model, data)
    arm_of_geom = _arm_of_geom(model)
    substeps = round(1 / RATE_HZ / model.opt.timestep)
    states = [data.qpos.copy()]
    for before, target in zip(path[:-1], path[1:], strict=True):
        for k in range(substeps):
            data.ctrl[:] = before + (target - before) * (k + 1) / substeps
            mujoco.mj_step(model, data)
            if data.ncon and (arm_of_geom[data.contact.geom].prod(axis=1) < 0).any():
                return None
        states.append(data.qpos.copy())
    return np.array(states)


def _arm_of_geom(model: Any) -> np.ndarray:
    sign = {"L_": 1, "R_": -1}
    return np.array(
        [sign.get(model.body(int(b)).name[:2], 0) for b in model.geom_bodyid], np.int64
    )


def _write_clip(
    out: Path,
    number: int,
    episodes: int,
    steps: int,
    task: str,
    size: tuple[int, int],
    seed: int,
) -> int:
    clip = simulate_clip(task, steps=steps, size=size, seed=(seed, number))
    arrays = clip.arrays()
    colors = (clip.draw.colors * 255).round().astype(int).tolist()
    meta = {
        "length": steps + 1,
        "task": task,
        "seed": seed,
        "split": schema.split_of(number, episodes),
        "success": clip.success(arrays["truth/object_to_world"]),
        "joint_positions_source": "measured",
        "joint_targets_source": "commanded",
        "objects": [
            {"name": name, "rgb": colors[k]} for k, name in enumerate(scene.object_names(task))
        ],
        "refused_draws": clip.attempt,
    }
    writer.write_episode(out, number, meta, arrays)
    return number


def _describe(
    episodes: int, steps: int, tasks: tuple[str, ...], size: tuple[int, int], seed: int
) -> dict[str, Any]:
    import mujoco

    height, width = size
    camera = {
        "height": height, "width": width, "axes": "opencv", "pixel_centre": 0.5,
        "depth": "planar_z", "depth_unit_m": 1.0, "mount": "world",
    }  # fmt: skip
    command = (
        f"hdvpd data simulate --episodes {episodes} --steps {steps} --tasks {','.join(tasks)} "
        f"--size {height}x{width} --seed {seed}"
    )
    return {
        "format": schema.FORMAT,
        "version": schema.VERSION,
        "rate_hz": RATE_HZ,
        "licence": "CC0-1.0",
        "cameras": {name: camera for name in scene.CAMERAS},
        "robot": scene.robot_description(),
        "workspace": {"min": list(scene.WORKSPACE_MIN), "max": list(scene.WORKSPACE_MAX)},
        "source": {
            "command": command,
            "hdvpd": hdvpd.__version__,
            "mujoco": mujoco.__version__,
            "numpy": np.__version__,
        },
    }


def _begin(out: Path, description: Mapping[str, Any], episodes: int) -> None:
    (out / "episodes").mkdir(parents=True, exist_ok=True)
    writer.write_json(out / "dataset.json", description)


def _check_arguments(
    episodes: int,
    steps: int,
    tasks: tuple[str, ...],
    size: tuple[int, int],
    seed: int,
    workers: int,
) -> None:
    for task in tasks:
        if task not in scene.TASKS:
            raise UserError(f"--tasks names '{task}'; choose from {', '.join(scene.TASKS)}.")


def _prepare_rendering(workers: int) -> None:
    os.environ.setdefault("MUJOCO_GL", "egl")
    if workers > 1:
        os.environ.setdefault("LP_NUM_THREADS", "0")


def _no_backend(error: Exception) -> UserError:
    return UserError(f"no rendering backend: {error}")
