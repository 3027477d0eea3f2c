"""Recordings of what `hdvpd rollout` and `hdvpd plan` wrote, rolled out again to be edited."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Camera, RgbdFrames, RobotPoints
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
        self.world = load(run, step)
        self.titles, self._plans = tuple(names), tuple(folder / name for name in names)
        self.episodes = (self._state.episode,) * len(names)

    def load(self, index: int, edits: Sequence[Edit] = ()) -> Recording:
        """Roll a plan out; one from an edited state has no truth."""
        state = self._state
        for edit in edits:
            state = edit.of_state(state)
        future = self._future(state, self._plans[index])
        camera = cameras_of(future)
        truth = None if edits else self._truth(self._plans[index])
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

    def _truth(self, plan: Path) -> Layer | None:
        if not (plan / TRUTH_FILE).is_file():
            return None
        arrays, _ = saving.read_npz(plan / TRUTH_FILE, "truth")
        camera = Camera(arrays["intrinsics"], arrays["camera_to_world"])
        frames = RgbdFrames(rgb=arrays["rgb"], depth_m=arrays["depth_m"], camera=camera)
        far = self.trained.config.render.far
        particles = seen_particles(frames, self.trained.workspace, far)
        return Layer(particles, arrays["rgb"], arrays["depth_m"])
