"""`hdvpd data simulate`: worker processes that write, or complete, a simulated data set.

An episode is a pure function of (seed, number). So episodes can be written in any order by any
number of processes, and an interrupted data set is completed by the same command with the same
bytes.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rich.console

import hdvpd
from hdvpd.basics.errors import UserError
from hdvpd.data import episode_pool, metadata, schema, store, writer
from hdvpd.data.importers.robot_model import kinematics_only
from hdvpd.data.robot import ROBOT_FILE, describe_robot
from hdvpd.data.simulation import scene
from hdvpd.data.simulation.clip import (
    RATE_HZ,
    check_rendering,
    is_reached,
    load_mujoco,
    simulate_clip,
)
from hdvpd.data.simulation.contacts import CONTACT_TASKS


@dataclass(frozen=True)
class _Job:
    """What decides the bytes of a data set.

    Attributes:
      out: its folder.
      episodes: when done.
      steps: control steps per episode.
      tasks: taken in turn.
      size: height and width of the images [px].
      seed: of everything.
    """

    out: Path
    episodes: int
    steps: int
    tasks: tuple[str, ...]
    size: tuple[int, int]
    seed: int

    def task(self, number: int) -> str:
        """Return the task of an episode; every split, which is a last digit, meets every task."""
        return self.tasks[(number + number // 10) % len(self.tasks)]


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

    The arguments are the flags of `hdvpd data simulate`; `size` is height and width [px]. A
    finished data set of ten or more episodes can be extended.

    Raises:
      UserError: an impossible argument, another data set in `out`, no rendering backend, a full
        disk, or a worker that was killed. Finished episodes are always kept.
    """
    job = _Job(Path(out), episodes, steps, tuple(tasks), size, seed)
    _check(job, workers)
    with writer.only_writer(job.out):
        _simulate(job, workers)


def _simulate(job: _Job, workers: int) -> None:
    done, episodes = set(writer.finished_episodes(job.out)), job.episodes
    missing = [n for n in range(episodes) if n not in done]
    if missing:
        check_rendering()
    _begin(job, complete=not missing)
    writer.clear_partial_episodes(job.out)
    console = rich.console.Console(soft_wrap=True, highlight=False)
    if done and missing:
        console.print(f"{job.out} has {len(done)} of {episodes} episodes; simulating the others.")
    try:
        clips = episode_pool.run_episodes(
            functools.partial(_write_clip, job), missing, workers=workers, out=job.out
        )
        for _ in episode_pool.report_progress(
            clips, len(missing), console, doing="simulating", done="simulated"
        ):
            pass
    except KeyboardInterrupt:
        finished = len(writer.finished_episodes(job.out))
        console.print(
            f"Interrupted: {finished} of {episodes} episodes of {job.out} are finished and kept; "
            "the same command continues."
        )
        raise
    counts = {s: len(store.Dataset(job.out).split(s)) for s in schema.SPLITS}
    listed = ", ".join(f"{count} {split}" for split, count in counts.items())
    console.print(
        f"{job.out}: {sum(counts.values())} episodes of {job.steps + 1} frames ({listed})."
    )


def _write_clip(job: _Job, number: int) -> int:
    task = job.task(number)
    clip = simulate_clip(task, steps=job.steps, size=job.size, seed=(job.seed, number))
    arrays = clip.arrays()
    colors = scene.object_colors(clip.draw)
    meta = {
        "length": job.steps + 1,
        "task": task,
        "seed": job.seed,
        "split": schema.split_of(number, job.episodes),
        "success": is_reached(task, arrays["truth/object_to_world"]),
        "joint_positions_source": "measured",
        "joint_targets_source": "commanded",
        "objects": [
            {
                "name": name,
                "rgb": (color * 255).round().astype(int).tolist(),
                "shape": scene.object_shape(name).describe(),
            }
            for name, color in colors.items()
        ],
        "refused_draws": clip.refused_draws,
    }
    writer.write_episode(job.out, number, meta, arrays)
    return number


def _describe(job: _Job) -> dict[str, Any]:
    mujoco = load_mujoco()
    height, width = job.size
    command = (
        f"hdvpd data simulate --episodes {job.episodes} --steps {job.steps} "
        f"--tasks {','.join(job.tasks)} --size {height}x{width} --seed {job.seed}"
    )
    return {
        "format": schema.FORMAT,
        "version": schema.VERSION,
        "rate_hz": RATE_HZ,
        "licence": "CC0-1.0",
        "cameras": dict.fromkeys(scene.CAMERAS, schema.describe_camera(height, width)),
        "robot": scene.robot_description(),
        "workspace": {"min": list(scene.WORKSPACE_MIN), "max": list(scene.WORKSPACE_MAX)},
        "source": {
            "command": command,
            "episodes": job.episodes,
            "hdvpd": hdvpd.__version__,
            "mujoco": mujoco.__version__,
            "numpy": np.__version__,
        },
    }


def _begin(job: _Job, *, complete: bool) -> None:
    """Write dataset.json, or make sure that what is there is the same data set."""
    file = job.out / "dataset.json"
    wanted = _describe(job)
    if file.is_file():
        found = metadata.read_json(file)
        _require_same(found, wanted, file, complete=complete)
        if not (job.out / ROBOT_FILE).is_file():
            writer.write_json(job.out / ROBOT_FILE, robot())
        if found["source"]["episodes"] == job.episodes:
            return
    elif writer.is_in_use(job.out, {"episodes", ROBOT_FILE}):  # the start of a killed one
        raise UserError(
            f"{job.out} exists and is no data set (dataset.json is missing). Choose another "
            "--out, or remove it."
        )
    writer.make_dataset(job.out)
    # First, so that no data set is ever without it.
    writer.write_json(job.out / ROBOT_FILE, robot())
    writer.write_json(file, wanted)


def robot() -> dict[str, Any]:
    """Describe the two arms for robot.json."""
    text, _ = kinematics_only(scene.robot_xml(), Path("scene.py"))
    return describe_robot(scene.robot_description(), text, scene.joint_moves())


def _require_same(found: Any, wanted: dict[str, Any], file: Path, *, complete: bool) -> None:
    schema.parse_dataset(found, file)
    source = found.get("source", {})
    old, new = source.get("episodes"), wanted["source"]["episodes"]
    own = dict(wanted["source"])
    own["command"] = own["command"].replace(f"--episodes {new}", f"--episodes {old}", 1)
    # Versions matter only if something is going to be added.
    for key in ("command",) if complete else ("command", "hdvpd", "mujoco", "numpy"):
        if source.get(key) != own[key]:
            raise UserError(
                f"{file} holds another data set: its source.{key} is {source.get(key)!r}, this "
                f"would be {own[key]!r}. Mixing them would not be reproducible: choose another "
                f"--out, or remove {file.parent}."
            )
    if not isinstance(old, int) or new < old or new != old < 10:
        raise UserError(
            f"{file.parent} was begun with --episodes {old}, now {new} are asked for. It can only "
            "grow, and only from ten or more (the splits of a smaller one would change): choose "
            "another --out."
        )


def _check(job: _Job, workers: int) -> None:
    limits = {"--episodes": (job.episodes, 1), "--steps": (job.steps, 2), "--workers": (workers, 1),
              "--seed": (job.seed, 0)}  # fmt: skip
    for key, (value, least) in limits.items():
        if value < least:
            raise UserError(f"{key} = {value} should be at least {least}.")
    known = (*scene.TASKS, *CONTACT_TASKS)
    for name in job.tasks:
        if name not in known:
            raise UserError(f"--tasks names {name!r}; choose from {', '.join(known)}.")
    if not job.tasks or len(set(job.tasks)) < len(job.tasks):
        names = ",".join(job.tasks)
        raise UserError(f"--tasks = {names!r} should name one or more tasks once each.")
    height, width = job.size
    if not (16 <= height <= 4096 and 16 <= width <= 4096):
        raise UserError(f"--size = {height}x{width} should lie between 16 and 4096 pixels a side.")
    if job.episodes > 999_999:
        raise UserError(f"--episodes = {job.episodes} should be at most 999999.")
