"""Small data sets drawn at random, sound and with one known error, for the study of calibration.

The scene is the analytic one of `hdvpd.data.simulation.synthetic`, with other cameras, noise as of
a depth sensor, other lengths and steps, and with or without a robot model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

from hdvpd.data import schema, writer
from hdvpd.data.pinhole import AXES, looking_at
from hdvpd.data.robot import ROBOT_FILE
from hdvpd.data.simulation import synthetic
from studies import calibration_sources as sources

Arrays = dict[str, np.ndarray]
SIZE = (72, 96)


@dataclass(frozen=True)
class Draw:
    """What is drawn for one data set.

    Attributes:
      seed: of everything.
      eyes: places of the cameras that stand in the world [m].
      wrist: whether a camera rides on the tool, too.
      model: whether link poses of a robot model are stored, or only the tool.
      episodes: how many.
      steps: of each.
      step_s: control step [s].
      noise_m: of depth at 1 m, growing with its square [m].
      holes: share of pixels without depth.
      kind: "analytic", "imported" (the same scene as pictures in a folder) or "simulated".
    """

    seed: int
    eyes: tuple[tuple[float, float, float], ...]
    wrist: bool
    model: bool
    episodes: int
    steps: int
    step_s: float
    noise_m: float
    holes: float
    kind: str = "analytic"

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras."""
        names = [f"cam{k}" for k in range(len(self.eyes))]
        return tuple([*names, "wrist"] if self.wrist else names)


def draw(seed: int, *, cameras: int = 0, model: bool | None = None, kind: str = "analytic") -> Draw:
    """Draw a data set.

    Args:
      seed: the same seed draws the same.
      cameras: that stand in the world; 0 draws their number.
      model: whether there is a robot model; None draws it.
      kind: of the set; a simulated one has two cameras at most and a step of 0.5 s.
    """
    rng = np.random.default_rng([7, seed])
    known = bool(rng.random() < 0.6) if model is None else model
    wrist = bool(rng.random() < 0.25) and cameras == 0 and kind == "analytic"
    known = known or kind == "imported"
    count = cameras or int(rng.choice([1, 2, 2, 2, 3, 4]))
    count = min(count, 2) if kind == "simulated" else count
    if count == 1 and not (known or wrist):
        count = 2
    angles = rng.uniform(-0.25, 0.25) + np.linspace(-0.9, 0.9, count) * rng.uniform(0.7, 1.2)
    eyes = [
        (
            float(1.0 * np.cos(a)),
            float(1.0 * np.sin(a)),
            float(rng.uniform(0.55, 0.85)),
        )
        for a in angles
    ]
    long = rng.random() < 0.1
    return Draw(
        seed, tuple(eyes), wrist, known,
        episodes=20 if long else int(rng.integers(1, 6)) if model is None else 4,
        steps=int(rng.integers(9, 15)),
        step_s=float(rng.choice([0.05, 0.1, 0.2, 0.5])),
        noise_m=float(rng.choice([0.0, 0.001, 0.002])),
        holes=float(rng.choice([0.0, 0.02])),
        kind=kind,
    )  # fmt: skip


def episode(draw: Draw, number: int, late: Mapping[str, float]) -> Arrays:
    """Render one episode.

    Args:
      draw: of the data set.
      number: of the episode.
      late: frames by which the images of a camera are late.
    """
    rng = np.random.default_rng([draw.seed, number])
    frames = draw.steps + 1
    # Motion per second is limited, as a robot's is; short steps show less of it.
    speed = rng.uniform(0.9, 1.5, 3) * min(1.0, 0.35 + draw.step_s)
    swing, phase = rng.uniform(0.5, 0.9, 3) * [0.6, 0.7, 0.02], rng.uniform(0, 2 * np.pi, 3)
    radii = rng.uniform(0.03, 0.06, 5)
    places = np.array([[0.25, -0.25], [0.28, 0.22], [-0.1, 0.3], [-0.15, -0.3], [0.05, 0.1]])
    places = places + rng.uniform(-0.04, 0.04, (5, 2))
    resting = np.concatenate([places, radii[:, None]], axis=1), radii, rng.uniform(0.2, 0.9, (5, 3))

    def joints(time: np.ndarray) -> np.ndarray:
        return np.array([0.0, 0.5, 0.03]) + swing * np.sin(speed * time[:, None] + phase)

    time = np.arange(frames, dtype=np.float64)
    now, targets = joints(time), joints(np.minimum(time + 1, draw.steps))
    links, commanded = (synthetic.link_poses(j[:, :2]) for j in (now, targets))
    kept = slice(None) if draw.model else slice(2, 3)
    arrays: Arrays = {
        "time_s": draw.step_s * time,
        "robot/joint_positions": now.astype(np.float32),
        "robot/joint_targets": targets.astype(np.float32),
        "robot/link_to_world": links[:, kept].astype(np.float32),
        "robot/target_link_to_world": commanded[:, kept].astype(np.float32),
    }
    height, width = SIZE
    focal = 1.3 * height
    intrinsics = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]])
    for name in draw.cameras:
        seen = synthetic.link_poses(joints(time - late.get(name, 0.0))[:, :2])
        poses = _poses(draw, name, links if name == "wrist" else seen)
        rgb, depth = zip(
            *(
                synthetic.cast(_spheres(pose[:, :3, 3], resting), intrinsics, eye, height, width)
                for pose, eye in zip(seen, poses, strict=True)
            ),
            strict=True,
        )
        arrays[f"cameras/{name}/rgb"] = np.stack(rgb)
        arrays[f"cameras/{name}/depth"] = _sensed(np.stack(depth), draw, rng)
        arrays[f"cameras/{name}/intrinsics"] = intrinsics
        arrays[f"cameras/{name}/camera_to_world"] = poses if name == "wrist" else poses[0]
    return arrays


def _poses(draw: Draw, name: str, links: np.ndarray) -> np.ndarray:
    if name != "wrist":
        eye = draw.eyes[int(name.removeprefix("cam"))]
        return np.broadcast_to(looking_at(eye, (0.0, 0.0, 0.05)), (len(links), 4, 4))
    mount = looking_at((-0.12, 0.02, 0.42), (0.1, 0.0, -0.16))
    return links[:, -1] @ mount


def _spheres(links: np.ndarray, resting: tuple[np.ndarray, ...]) -> synthetic.Spheres:
    grey = np.concatenate([links, 0.5 * (links[:-1] + links[1:])])
    ball = links[-1:] + np.array(synthetic.BALL_OFFSET)
    return synthetic.Spheres(
        centers=np.concatenate([grey, ball, resting[0]]),
        radii=np.concatenate([np.full(len(grey), 0.035), [0.05], resting[1]]),
        colors=np.concatenate([np.full((len(grey), 3), 0.35), [synthetic.BALL_COLOR], resting[2]]),
    )


def _sensed(depth: np.ndarray, draw: Draw, rng: np.random.Generator) -> np.ndarray:
    noisy = depth + draw.noise_m * np.square(depth) * rng.normal(size=depth.shape)
    kept = (depth > 0) & (rng.random(depth.shape) >= draw.holes)
    return np.where(kept, noisy, 0.0).astype(np.float32)


def write(
    path: Path,
    draw: Draw,
    damage: Callable[[int, Arrays], Arrays],
    late: float = 0,
    shared: Path = Path("simulated"),
) -> None:
    """Write a data set.

    Args:
      path: new folder.
      draw: what it is like.
      damage: given an episode's number and arrays, returns them with the error.
      late: frames by which the first camera's images are late; not in simulated ones.
      shared: folder of the simulated data set that others are taken from.
    """
    if draw.kind == "analytic":
        _write_analytic(path, draw, damage, late)
        return

    def sensed(number: int, arrays: Arrays) -> Arrays:
        rng = np.random.default_rng([draw.seed, number])
        depths = {n: _sensed(d, draw, rng) for n, d in arrays.items() if n.endswith("/depth")}
        return damage(number, arrays | (depths if draw.kind == "simulated" else {}))

    if draw.kind == "simulated":
        source = sources.simulated(shared)
    else:
        recorded = [episode(draw, number, {"cam0": late}) for number in range(draw.episodes)]
        source = sources.imported(recorded, draw.cameras, draw.step_s, path.with_name("imported"))
    sources.rewrite(source, path, draw.cameras, draw.episodes, draw.model, sensed)


def _write_analytic(
    path: Path, draw: Draw, damage: Callable[[int, Arrays], Arrays], late: float
) -> None:
    writer.make_dataset(path)
    description = dict(synthetic.describe(*SIZE))
    description["rate_hz"] = 1 / draw.step_s
    description["cameras"] = {
        name: schema.describe_camera(*SIZE, "tcp" if name == "wrist" else "world")
        for name in draw.cameras
    }
    description["objects"] = []
    if not draw.model:
        robot = dict(description["robot"])
        robot["links"] = [{"name": "tcp", "arm": "left"}]
        arms = robot["skeleton"]["arms"]
        robot["skeleton"] = {"points": ["tcp"], "segments": [], "arms": arms}
        description["robot"] = robot
    if draw.model:
        writer.write_json(path / ROBOT_FILE, synthetic.robot())
    writer.write_json(path / "dataset.json", description)
    for number in range(draw.episodes):
        meta = {
            "length": draw.steps + 1,
            "task": "swing",
            "split": "train",
            "joint_positions_source": "measured",
            "joint_targets_source": "commanded",
        }
        arrays = damage(number, episode(draw, number, {"cam0": late}))
        writer.write_episode(path, number, meta, arrays)


@dataclass(frozen=True)
class Error:
    """One kind of error.

    Attributes:
      name: of the kind.
      size: as shown.
      words: any of which names it.
      damage: makes it: (arrays, random generator of the set, episode) to arrays.
      late: frames by which the first camera is late.
      robot: whether only a robot model can show it.
      truth: of what should be recovered: pose, scale, focal, lag, base, joint or nothing.
    """

    name: str
    size: str
    words: tuple[str, ...]
    damage: Callable[[Arrays, np.random.Generator, int], Arrays]
    late: float = 0.0
    robot: bool = False
    truth: str = ""


def motion(rng: np.random.Generator, degrees: float, metres: float) -> np.ndarray:
    """Draw a rigid motion of given size in a random direction."""
    axes = rng.normal(size=(2, 3))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    pose = np.eye(4)
    pose[:3, :3] = Rotation.from_rotvec(np.deg2rad(degrees) * axes[0]).as_matrix()
    pose[:3, 3] = metres * axes[1]
    return pose


def _moved(degrees: float, metres: float) -> Callable[..., Arrays]:
    def damage(arrays: Arrays, rng: np.random.Generator, _: int) -> Arrays:
        name = "cameras/cam0/camera_to_world"
        return arrays | {name: arrays[name] @ motion(rng, degrees, metres)}

    return damage


def _of(
    key: str, change: Callable[[np.ndarray], np.ndarray], *cameras: str
) -> Callable[..., Arrays]:
    def damage(arrays: Arrays, _: np.random.Generator, __: int) -> Arrays:
        names = [
            n
            for n in arrays
            if n.endswith(f"/{key}") and (not cameras or n.split("/")[1] in cameras)
        ]
        return arrays | {n: change(arrays[n]) for n in names}

    return damage


def _flipped(axis: int, *cameras: str) -> Callable[..., Arrays]:
    def damage(arrays: Arrays, rng: np.random.Generator, number: int) -> Arrays:
        for key in ("rgb", "depth"):
            turn = _of(key, lambda x: np.flip(x, axis).copy(), *cameras)
            arrays = turn(arrays, rng, number)
        return arrays

    return damage


def _swapped(arrays: Arrays, _: np.random.Generator, number: int) -> Arrays:
    a, b = (f"cameras/cam{k}/camera_to_world" for k in (0, 1))
    return arrays | {a: arrays[b], b: arrays[a]} if number % 2 else arrays


def _shifted(arrays: Arrays, rng: np.random.Generator, _: int) -> Arrays:
    move = motion(rng, 0.0, 0.15)
    names = [n for n in arrays if n.endswith("camera_to_world")]
    return arrays | {n: move @ arrays[n] for n in names}


def _displaced(metres: float) -> Callable[..., Arrays]:
    def damage(arrays: Arrays, rng: np.random.Generator, _: int) -> Arrays:
        move = motion(rng, 0.0, metres)
        names = ("robot/link_to_world", "robot/target_link_to_world")
        return arrays | {n: (move @ arrays[n]).astype(np.float32) for n in names}

    return damage


def _bent(joint: int, degrees: float) -> Callable[..., Arrays]:
    def damage(arrays: Arrays, _: np.random.Generator, __: int) -> Arrays:
        result = dict(arrays)
        for joints, links in (("positions", "link"), ("targets", "target_link")):
            values = arrays[f"robot/joint_{joints}"].copy()
            values[:, joint] += np.float32(np.deg2rad(degrees))
            result[f"robot/joint_{joints}"] = values
            poses = synthetic.link_poses(values[:, :2].astype(np.float64))
            result[f"robot/{links}_to_world"] = poses.astype(np.float32)
        return result

    return damage


def _scale_rows(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda k: k * np.array([[factor], [factor], [1.0]])


def _focal(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda k: k * np.array([[factor, 1, 1], [1, factor, 1], [1, 1, 1]])


_FIRST = "cam0"
ERRORS: tuple[Error, ...] = (
    Error("turned", "1 degree", ("turned by",), _moved(1.0, 0.0), truth="pose"),
    Error("turned", "2 degrees", ("turned by",), _moved(2.0, 0.0), truth="pose"),
    Error("turned", "3 degrees", ("turned by",), _moved(3.0, 0.0), truth="pose"),
    Error("moved", "1 cm", ("moved by",), _moved(0.0, 0.01), truth="pose"),
    Error("moved", "3 cm", ("moved by",), _moved(0.0, 0.03), truth="pose"),
    Error("turned and moved", "5 degrees, 5 cm", ("moved by",), _moved(5.0, 0.05), truth="pose"),
    Error("focal length", "times 1.1", ("focal length times",),
          _of("intrinsics", _focal(1.1), _FIRST), truth="focal"),
    Error("intrinsics of another size", "times 2", ("unscaled intrinsics",),
          _of("intrinsics", _scale_rows(2.0), _FIRST)),
    Error("depth scale", "times 0.9", ("depth times",),
          _of("depth", lambda d: d * np.float32(0.9), _FIRST), truth="scale"),
    Error("depth scale", "times 0.98", ("depth times",),
          _of("depth", lambda d: d * np.float32(0.98), _FIRST), truth="scale"),
    Error("poses exchanged in half of the episodes", "all",
          ("Only episodes 1, 3", "Only episodes 13, 19", "Only episodes 3, 5"), _swapped),
    Error("one camera late", "0.6 steps", ("late",), lambda a, _, __: a, late=0.6, robot=True,
          truth="lag"),
    Error("one camera mirrored", "all", ("mirrored left to right",), _flipped(2, _FIRST)),
    Error("one camera upside down", "all", ("upside down",), _flipped(1, _FIRST)),
    Error("all mirrored, with a robot", "all", ("mirrored",), _flipped(2), robot=True),
    Error("all upside down, with a robot", "all", ("upside down",), _flipped(1), robot=True),
    Error("saturated depth", "15 % at 4 m", ("invalid",),
          _of("depth", lambda d: np.where(d > np.quantile(d[d > 0], 0.85), np.float32(4), d),
              _FIRST)),
    Error("world-to-camera poses of OpenGL", "all", ("inverted extrinsics with OpenGL axes",),
          _of("camera_to_world", lambda p: np.linalg.inv(p @ AXES["opengl"]))),
    Error("all cameras shifted", "15 cm", ("base turned",), _shifted, robot=True, truth="base"),
    Error("robot's base", "10 cm", ("base turned",), _displaced(0.1), robot=True, truth="base"),
    Error("a joint off at all times", "20 degrees", ("joint shoulder",), _bent(0, 20.0),
          robot=True, truth="joint"),
)  # fmt: skip
"""Every error of the study."""
