"""Settings of a training."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from hdvpd.config.settings import (
    Count,
    CountOrZero,
    DecayRate,
    Free,
    Limit,
    Positive,
    PositiveOrZero,
    Settings,
    require,
)


@dataclass(frozen=True)
class AugmentConfig(Settings):
    """How windows are changed at random in training; nothing changes by default (paper)."""

    colors: PositiveOrZero = 0.0
    """Standard deviation of the logarithm of the gain by which each channel of a window's images is
    multiplied."""
    camera_shift: PositiveOrZero = 0.0
    """Standard deviation of how far each camera of a window stands beside its place [m], per axis;
    errors of calibration."""
    camera_turn: PositiveOrZero = 0.0
    """Standard deviation of how far each camera of a window is turned [rad], per axis."""
    mirror: Literal["none", "x", "y", "z"] = "none"
    """Axis of the world along which every other window, at random, is mirrored through the middle
    of the workspace; with model.shadow, none: its lamp stays where it is."""


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Loss, optimiser and schedule of a run."""

    seed: CountOrZero = 0
    """Seed of parameters, data order and rays."""
    num_steps: Annotated[Count, Free("resume", unless=("schedule", "cosine"))] = 100_000
    """Training steps (paper)."""
    batch_size: Count = 16
    """Windows per step (paper)."""
    accumulate: Annotated[Count, Free("resume")] = 1
    """Parts in which a device works off its windows of a step, one after another: memory of one
    part. Sums are rounded otherwise, nothing else changes."""
    num_devices: Annotated[CountOrZero, Free("resume")] = 1
    """Devices, of every process, that share the windows of a step; 0 takes as many as there are
    and divide them. On a CPU these are cores."""
    shard_state: Annotated[bool, Free("resume")] = False
    """Spread parameters and optimiser over the devices instead of repeating them on each."""
    horizon: Count = 6
    """Predicted frames per window (paper)."""
    cloud_size: CountOrZero = 0
    """Particles per time step in training, 0: model.num_particles (paper). Fewer make steps
    cheaper; rollouts have them all. The renderer's kernels are as much wider as they are apart."""
    num_rays: Count = 128
    """Rays per window and predicted frame, over all cameras' pixels (paper: 128)."""
    patch_size: Count = 1
    """Side of the squares of pixels in which rays are drawn [px]; 1 draws single ones (paper)."""
    structure_weight: PositiveOrZero = 0.0
    """Of 1 - SSIM of the drawn squares in the loss; 0 for squared errors alone (paper)."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    """How windows are changed at random."""
    moving_ray_weight: Positive = 1.0
    """How much likelier a ray goes to a pixel that changed since the last observed frame than to
    another; 1 is uniform (default for the paper)."""
    moving_window_share: Annotated[
        float, Limit(lambda x: 0 <= x <= 1, "use a number from 0 to 1")
    ] = 0.0
    """Share of the windows drawn from those in which an object moves, by the truth where the data
    set has it, else by image change away from the robot; the rest is drawn from all windows."""
    reconstruct: bool = False
    """Also render the last observed frame from its own particles, as one image more of the loss
    (not in the papers)."""
    depth_weight: PositiveOrZero = 0.0
    """Of the absolute error of rendered depth [m] in the loss; 0 for RGB alone (paper)."""
    match_weight: PositiveOrZero = 0.0
    """Of the distance between predicted particles and the points measured at that time [m] in the
    loss, with model.colors; 0 for none (paper)."""
    identity_steps: CountOrZero = 2000
    """With model.contact: steps in which the model learns from recorded frames, before all else,
    which particles are the robot's; 0 takes what is near its skeleton for the robot's."""
    near_ray_distance: PositiveOrZero = 0.0
    """Pixels within this of a kinematic point [m] count as moving for moving_ray_weight, whether
    they move or not; 0 does not look at the robot (default for the paper)."""
    schedule: Literal["piecewise", "cosine"] = "piecewise"
    """Piecewise constant (paper), or linear warm-up over warmup_steps and cosine decay to zero."""
    learning_rates: Annotated[
        tuple[float, ...],
        Limit(
            lambda rates: len(rates) >= 1 and all(rate >= 0 for rate in rates),
            "give at least one rate, none of them negative",
        ),
    ] = (3e-4, 1e-4)
    """Rates between boundaries (paper); the cosine schedule peaks at the first."""
    boundaries: Annotated[
        tuple[int, ...],
        Limit(lambda x: list(x) == sorted(set(x)), "give steps in increasing order"),
    ] = (1000,)
    """Steps at which the piecewise schedule changes (paper)."""
    warmup_steps: int = 0
    """Linear warm-up of the cosine schedule."""
    weight_decay: PositiveOrZero = 1e-3
    """AdamW's decoupled decay, on matrices only (paper: 1e-3)."""
    clip_norm: Positive = 0.01
    """Bound of the gradient's global norm (paper)."""
    b1: DecayRate = 0.9
    """AdamW's first-moment decay."""
    b2: DecayRate = 0.999
    """AdamW's second-moment decay."""
    eps: Positive = 1e-8
    """AdamW's epsilon."""
    ema_decay: DecayRate = 0.0
    """Of the exponential moving average of the parameters, which models are made of while training
    goes on at its own; 0 averages nothing (paper)."""
    remat: bool = True
    """Recompute every dynamics step in the backward pass: time for memory."""
    log_every: Annotated[Count, Free("resume")] = 50
    """Steps per record of metrics.jsonl."""
    validate_every: Annotated[CountOrZero, Free("resume")] = 1000
    """Steps between validations on held-out windows; 0 never validates."""
    validation_windows: Annotated[Count, Free("resume")] = 8
    """Held-out windows per validation."""
    checkpoint_every: Annotated[Count, Free("resume")] = 1000
    """Steps between checkpoints; the last step is always saved."""
    keep_checkpoints: Annotated[Count, Free("resume")] = 3
    """Checkpoints kept, newest first."""
    max_nonfinite: Annotated[Count, Free("resume")] = 10
    """Skipped non-finite steps in a row after which the run stops."""
    preflight: Annotated[Literal["auto", "on", "off"], Free("resume")] = "auto"
    """Try every part before the first step, and report time, memory and disk; auto does so before
    more than a thousand steps."""
    tensorboard: Annotated[bool, Free("resume")] = False
    """Also write TensorBoard event files."""

    def check(self) -> None:
        """Refuse schedules that do not fit their boundaries or the number of steps."""
        require(
            self.schedule != "piecewise" or len(self.learning_rates) == len(self.boundaries) + 1,
            "learning_rates",
            self.learning_rates,
            f"give one rate more than boundaries = {self.boundaries}",
        )
        require(
            0 <= self.warmup_steps < self.num_steps,
            "warmup_steps",
            self.warmup_steps,
            f"it must lie between 0 and num_steps = {self.num_steps}",
        )
        require(
            self.schedule == "cosine" or self.warmup_steps == 0,
            "warmup_steps",
            self.warmup_steps,
            'the piecewise schedule has no warm-up: use 0, or schedule = "cosine"',
        )
        require(
            self.num_rays % self.patch_size**2 == 0,
            "patch_size",
            self.patch_size,
            f"num_rays = {self.num_rays} are to be whole squares of so many pixels by so many",
        )
        require(
            not self.structure_weight or self.patch_size > 1,
            "structure_weight",
            self.structure_weight,
            "single pixels have no structure: set a patch_size, such as 8",
        )
