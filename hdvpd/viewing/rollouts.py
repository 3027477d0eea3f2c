"""Recordings of what `hdvpd rollout` and `hdvpd plan` wrote, rolled out again to be edited."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Camera, RgbdFrames, RobotPoints
from hdvpd.data.windows import OBSERVED_FRAMES
from hdvpd.training.checkpoint_folder import find_damage
from hdvpd.training.checkpoints import CheckpointStore
from hdvpd.training.run_folder import RunFolder
from hdvpd.viewing.editing import Edit
from hdvpd.viewing.models import ModelSource, cameras_of, scores
from hdvpd.viewing.recording import PREDICTION, TRUTH, Layer, Recording, bones
from hdvpd.viewing.sources import seen_particles
from hdvpd.world import saving
from hdvpd.world.future import Future
from hdvpd.world.loading import load
from hdvpd.world.outputs import ROLLOUT_FILE, STATE_FILE, TRUTH_FILE
from hdvpd.world.state import State


class RolloutSource(ModelSource):
    """The plans of a rollout folder, with what is known to have followed them."""

    def __init__(self, folder: Path) -> None:
        """Load the model that made the folder.

        Raises:
          UserError: the folder is damaged or of an earlier version, or its run is gone.
        """
        super().__init__()
        self.folder, self.name = folder, str(folder)
        try:
            about: dict[str, Any] = json.loads((folder / ROLLOUT_FILE).read_text(encoding="utf-8"))
            names = [str(plan["name"]) for plan in about["plans"]]
            run, step, self._rate_hz = Path(about["run"]), about["checkpoint"], about["rate_hz"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{folder / ROLLOUT_FILE} cannot be read ({error}): it is damaged, or of an "
                "earlier hdvpd. Write the rollout again with `hdvpd rollout` or `hdvpd plan`."
            ) from error
        self._state = State.load(folder / STATE_FILE)
        try:
            self.world = load(run, step)
        except UserError as error:
            raise UserError(_why_not_repeated(folder, run, step) or str(error)) from error
        self.titles, self._plans = tuple(names), tuple(folder / name for name in names)
        self.episodes = (self._state.episode,) * len(names)

    def load(self, index: int, edits: Sequence[Edit] = ()) -> Recording:
        """Roll a plan out; one from an edited state has no truth."""
        state = self._state
        for edit in edits:
            state = edit.of_state(state)
        future, recorded = self._future(state, self._plans[index]), self._recorded(index)
        if recorded is not None:
            went = jax.tree.map(lambda x: x[OBSERVED_FRAMES:], recorded.camera)
            future = dataclasses.replace(future, seen_from=went)
        camera = cameras_of(future)
        truth = None if edits or recorded is None else self._truth(recorded)
        layers, ssim = {PREDICTION: self.predicted(future, camera)}, None
        if truth is not None:
            layers = {TRUTH: truth, **layers}
            ssim = scores(layers[PREDICTION].rgb, truth.rgb)
        setup = self.trained.setup
        robot = None if setup is None else setup.robot
        return Recording(
            title=self.titles[index],
            rate_hz=self._rate_hz,
            num_observed=len(state.robot.positions),
            cameras=tuple(state.cameras),
            camera=camera,
            robot=np.concatenate([state.robot.positions, future.robot.positions]),
            bones=() if robot is None else bones(robot.info.skeleton),
            workspace=self.trained.workspace,
            layers=layers,
            ssim=ssim,
        )

    def _future(self, state: State, plan: Path) -> Future:
        arrays, _ = saving.read_npz(plan / "particles.npz", "future")
        if "joint_targets" in arrays:
            return self.trained.rollout(state, arrays["joint_targets"])
        points = RobotPoints(
            *(arrays[x] for x in ("kinematic_points", "kinematic_axes", "gripper"))
        )
        return self.trained.rollout_points(state, points)

    def _recorded(self, index: int) -> RgbdFrames | None:
        """Read the frames, axes (t v), that are known to have followed; None if none are."""
        file = self._plans[index] / TRUTH_FILE
        if not file.is_file():
            return None
        arrays, _ = saving.read_npz(file, "truth")
        camera = Camera(arrays["intrinsics"], arrays["camera_to_world"])
        return RgbdFrames(rgb=arrays["rgb"], depth_m=arrays["depth_m"], camera=camera)

    def _truth(self, frames: RgbdFrames) -> Layer:
        far = self.trained.config.render.far
        particles = seen_particles(frames, self.trained.workspace, far)
        return Layer(particles, np.asarray(frames.rgb), np.asarray(frames.depth_m))


def _why_not_repeated(folder: Path, run: Path, step: int) -> str | None:
    """Say why a rollout's model cannot be loaded, and what to do; no flag chooses another one.

    Returns:
      Whole sentences; None if neither the run nor the checkpoint is gone or damaged.
    """
    again = "write the rollout again with `hdvpd rollout` or `hdvpd plan`."
    found = RunFolder.search(run)
    if found is None:
        return (
            f"{folder} was rolled out by the run {run}, which is not there. If it was moved, write "
            f"its new place as `run` into {folder / ROLLOUT_FILE}; else {again}"
        )
    store = CheckpointStore(found.path)
    there = step in store.steps()
    fault = find_damage(store.path / str(step)) if there else "it is not there"
    if fault is None:
        return None
    return (
        f"{folder} was rolled out by checkpoint {step} of {run}, which cannot be read: {fault}. "
        f"Restore it from a copy, or {again}"
    )
