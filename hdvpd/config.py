"""The schema of an experiment: frozen dataclasses whose defaults are the paper's values.

An experiment file (`configs/*.toml`) states only how it differs; see `hdvpd.experiments` for
reading, overriding and writing. Nothing here imports jax, so the command line answers fast.
Lengths are metres, angles radians. "paper" is HD-VPD (arXiv 2406.19800) as restated in
arXiv 2410.03462, App. C.3; every other value is our default and says so.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, get_args

from hdvpd.errors import UserError

Control = Literal[
    "static_render", "copy_last_frame", "kinematics_only", "zero_actions", "shuffled_actions"
]

# All walks of 3 neighbours and 6 hops have 1,093 entries per token.
_MAX_EXACT_ENTRIES = 4096


def _require(condition: bool, key: str, value: object, remedy: str) -> None:
    if not condition:
        raise UserError(f"{key} = {value!r} is not possible: {remedy}.")


@dataclass(frozen=True)
class DataConfig:
    """Which frames are read, and at which size."""

    path: str = "data/robot"
    """Folder of the data set (docs/data-format.md)."""
    cameras: tuple[str, ...] = ()
    """Cameras to read, in this order; empty means all of the data set (paper: 2)."""
    height: int = 240
    """Image height [px]; frames of another size are resized, intrinsics with them."""
    width: int = 320
    """Image width [px]."""
    workspace_min: tuple[float, ...] = ()
    """Lower corner of the workspace box [m]; empty means the data set's own."""
    workspace_max: tuple[float, ...] = ()
    """Upper corner of the workspace box [m]; empty means the data set's own."""
    num_workers: int = 2
    """Threads that read windows ahead of the training step; never changes what is read."""
    prefetch: int = 4
    """Batches kept ready."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        for key in ("height", "width", "num_workers", "prefetch"):
            value = getattr(self, key)
            _require(value >= 1, f"data.{key}", value, "use a positive number")
        for key in ("workspace_min", "workspace_max"):
            value = getattr(self, key)
            _require(len(value) in (0, 3), f"data.{key}", value, "give three numbers or none")
        low, high = self.workspace_min, self.workspace_max
        _require(
            len(low) == len(high) and all(a < b for a, b in zip(low, high, strict=True)),
            "data.workspace_max",
            high,
            f"every number must lie above that of data.workspace_min = {low}",
        )


@dataclass(frozen=True)
class ModelConfig:
    """Encoder and dynamics."""

    num_particles: int = 32768
    """Particles per time step (paper)."""
    feature_dim: int = 16
    """Features per pixel and particle (paper)."""
    unet_channels: tuple[int, ...] = (32, 64, 128, 128)
    """U-Net width per level, full resolution first."""
    dynamics: Literal["interlacer", "graph_network"] = "interlacer"
    """Family of the dynamics model: Interlacer, or the hierarchical graph network of VPD."""
    local: Literal["grf", "rwgnk", "diffusion", "mp", "none"] = "grf"
    """Local layer of the Interlacer: attention masked by graph random features (paper), by a
    random-walk graph-node kernel or by graph diffusion; message passing by the neighbour-attender
    (paper); or none (unmasked transformer)."""
    global_mask: Literal["none", "grf", "rwgnk", "diffusion"] = "none"
    """Mask over the global attention, learned per head on the same graph (paper: none)."""
    num_layers: int = 4
    """Interlacer blocks."""
    latent_dim: int = 128
    """Token width."""
    num_heads: int = 4
    """Heads of the global attention."""
    local_heads: int = 1
    """Heads of the local attention, under one mask (paper: 1). The cost of every mask but grf's
    falls as their number grows."""
    mlp_ratio: int = 2
    """Hidden width of a block's MLP over the token width."""
    num_neighbors: int = 3
    """Out-degree of the walk graph (paper)."""
    num_hops: int = 3
    """Hops of every walk (paper); with halting the longest walk."""
    walks: Literal["exact", "iid", "repelling", "antithetic", "repelling-antithetic"] = "exact"
    """All walks, which on neighbour lists is what the paper's 27 repelling walkers amount to; or
    sampled ones with this coupling, drawn anew at every step."""
    num_walkers: int = 27
    """Sampled walkers per token (paper); fewer than num_neighbors leave some unread in a step."""
    halting: float = 0.0
    """Probability that a sampled walker stops before each hop; 0 walks num_hops hops (paper)."""
    max_diffusion_time: float = 2.0
    """Bound of the learned time of graph diffusion, the mean number of hops; cost grows with it."""
    feature_map: Literal["relu", "elu", "favor"] = "relu"
    """Positive features of the global attention: ReLU (paper), elu + 1, or FAVOR+, random features
    whose products are those of softmax in expectation."""
    num_random_features: int = 0
    """FAVOR+ features per head; 0 means the width of a head, as many as the other maps have."""
    anchor_fraction: float = 0.125
    """Share of the tokens that message passing updates from their neighbours."""
    anchor_neighbors: int = 16
    """Nearest tokens that an anchor reads in message passing."""
    aggregate: Literal["softmax", "mean", "sum"] = "softmax"
    """How an anchor gathers its neighbours' messages."""
    abstract_fraction: float = 0.0625
    """Abstract nodes of the graph network over the particles of one time step."""
    abstract_links: int = 3
    """Nearest abstract nodes that a particle is joined to."""
    abstract_neighbors: int = 8
    """Nearest abstract nodes that an abstract node hears."""
    message_rounds: int = 8
    """Rounds of messages among abstract nodes."""
    position_frequencies: int = 0
    """Octaves of sines and cosines added to the linear position embedding."""
    carry: bool = False
    """Particles know the motion of the robot's skeleton at their place and can go along with it;
    learned much sooner than from attention alone (not in the papers)."""
    max_displacement: float = 0.25
    """Bound of the position change per step and coordinate [m] (paper)."""
    position_embedding: bool = True
    """Embed the absolute position in the tokens; without it dynamics is translation-equivariant."""
    knn: Literal["auto", "kdtree", "xla", "open3d", "keops"] = "auto"
    """Neighbour search; auto is kdtree on CPU and xla on accelerators."""
    kernels: Literal["auto", "host", "xla", "pallas"] = "auto"
    """Fused layers: compiled host code (auto on CPU) or plain JAX (auto elsewhere); pallas is plain
    JAX but for the walk attention, whose GPU kernels were never run on a GPU."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        for key in (
            "num_particles",
            "feature_dim",
            "num_layers",
            "latent_dim",
            "num_heads",
            "mlp_ratio",
            "num_neighbors",
            "num_hops",
            "anchor_neighbors",
            "abstract_links",
            "abstract_neighbors",
            "message_rounds",
            "num_walkers",
            "local_heads",
        ):
            value = getattr(self, key)
            _require(value >= 1, f"model.{key}", value, "use a positive number")
        for key in ("anchor_fraction", "abstract_fraction"):
            value = getattr(self, key)
            _require(0 < value <= 1, f"model.{key}", value, "use a number above 0, at most 1")
        _require(self.num_random_features >= 0, "model.num_random_features",
                 self.num_random_features, "use 0 or a positive number")  # fmt: skip
        for key in ("num_heads", "local_heads"):
            value = getattr(self, key)
            _require(self.latent_dim % value == 0, f"model.{key}", value,
                     f"it must divide model.latent_dim = {self.latent_dim}")  # fmt: skip
        _require(
            len(self.unet_channels) >= 1 and all(c >= 8 and c % 8 == 0 for c in self.unet_channels),
            "model.unet_channels",
            self.unet_channels,
            "give one or more multiples of 8 (GroupNorm has groups of 8)",
        )
        _require(self.position_frequencies >= 0, "model.position_frequencies",
                 self.position_frequencies, "use 0 or a positive number")  # fmt: skip
        _require(self.max_displacement > 0, "model.max_displacement", self.max_displacement,
                 "use a positive length")  # fmt: skip
        _require(0 < self.max_diffusion_time <= 100, "model.max_diffusion_time",
                 self.max_diffusion_time, "use a number above 0, at most 100")  # fmt: skip
        self._check_walks()

    def _check_walks(self) -> None:
        _require(
            self.dynamics != "interlacer"
            or (self.local in ("mp", "none") and self.global_mask == "none")
            or self.num_neighbors < self.num_particles,
            "model.num_neighbors",
            self.num_neighbors,
            f"a particle has fewer neighbours than model.num_particles = {self.num_particles}",
        )
        _require(
            0 <= self.halting < 1,
            "model.halting",
            self.halting,
            "use a probability between 0 and 1, or 0 for walks of num_hops hops",
        )
        antithetic = "antithetic" in self.walks
        _require(
            self.walks != "exact" or self.halting == 0,
            "model.halting",
            self.halting,
            'exact walks do not stop; use 0 or sample, for example model.walks = "iid"',
        )
        _require(
            not antithetic or self.halting > 0,
            "model.halting",
            self.halting,
            f"model.walks = {self.walks!r} couples the stopping; use a probability above 0",
        )
        _require(
            not antithetic or self.num_walkers % 2 == 0,
            "model.num_walkers",
            self.num_walkers,
            "antithetic walkers come in pairs; use an even number",
        )
        entries = sum(self.num_neighbors**hop for hop in range(self.num_hops + 1))
        _require(
            self.walks != "exact" or entries <= _MAX_EXACT_ENTRIES,
            "model.num_hops",
            self.num_hops,
            f"exact walks may have {_MAX_EXACT_ENTRIES} entries per token; use fewer hops or "
            'neighbours, or sample, for example model.walks = "repelling"',
        )


@dataclass(frozen=True)
class RenderConfig:
    """Annular-kernel Point-NeRF renderer."""

    radii: tuple[float, ...] = (0.0, 0.01, 0.02, 0.05)
    """Radii of the annular kernels [m] (paper)."""
    bandwidths: tuple[float, ...] = (0.01, 0.01, 0.01, 0.05)
    """Bandwidths of the annular kernels [m] (paper)."""
    num_neighbors: int = 16
    """Nearest particles that stand for the kernels' sums (paper)."""
    near: float = 0.1
    """Start of every ray [m] (paper)."""
    far: float = 2.0
    """End of every ray [m] (paper)."""
    num_samples: int = 64
    """Stratified samples per ray in training."""
    num_proposals: int = 32
    """Samples per ray placed near particles in training."""
    eval_num_samples: int = 128
    """Stratified samples per ray in evaluation."""
    eval_num_proposals: int = 64
    """Samples per ray placed near particles in evaluation."""
    mlp_width: int = 128
    """Hidden width of the NeRF MLP."""
    mlp_depth: int = 2
    """Hidden layers of the NeRF MLP."""
    density_scale: float = 100.0
    """Density per metre is this times softplus(raw), times the widest kernel's weight up to 1."""
    cutoff: float = 0.15
    """Samples farther than this from every particle are empty [m]."""
    chunk_rays: int = 2048
    """Rays rendered at once in a full image; bounds memory."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        _require(
            0 < self.near < self.far,
            "render.near",
            self.near,
            f"it must lie between 0 and render.far = {self.far}",
        )
        _require(
            len(self.radii) == len(self.bandwidths) >= 1,
            "render.bandwidths",
            self.bandwidths,
            f"give one positive bandwidth per radius {self.radii}",
        )
        _require(all(b > 0 for b in self.bandwidths), "render.bandwidths", self.bandwidths,
                 "bandwidths are positive")  # fmt: skip
        for key in ("num_neighbors", "num_samples", "eval_num_samples", "mlp_width", "chunk_rays"):
            value = getattr(self, key)
            _require(value >= 1, f"render.{key}", value, "use a positive number")
        for key in ("num_proposals", "eval_num_proposals", "mlp_depth"):
            value = getattr(self, key)
            _require(value >= 0, f"render.{key}", value, "use zero or a positive number")
        _require(self.cutoff > 0, "render.cutoff", self.cutoff, "use a positive length")


@dataclass(frozen=True)
class TrainConfig:
    """Loss, optimiser and schedule of a run."""

    seed: int = 0
    """Seed of parameters, data order and rays."""
    num_steps: int = 100_000
    """Training steps (paper)."""
    batch_size: int = 16
    """Windows per step (paper)."""
    horizon: int = 6
    """Predicted frames per window (paper)."""
    num_rays: int = 128
    """Rays per window and predicted frame, over all cameras' pixels (paper: 128)."""
    moving_ray_weight: float = 1.0
    """How much likelier a ray goes to a pixel that changed since the last observed frame than to
    another; 1 is uniform (default for the paper)."""
    schedule: Literal["piecewise", "cosine"] = "piecewise"
    """Piecewise constant (paper), or linear warm-up over warmup_steps and cosine decay to zero."""
    learning_rates: tuple[float, ...] = (3e-4, 1e-4)
    """Rates between boundaries (paper); the cosine schedule peaks at the first."""
    boundaries: tuple[int, ...] = (1000,)
    """Steps at which the piecewise schedule changes (paper)."""
    warmup_steps: int = 0
    """Linear warm-up of the cosine schedule."""
    weight_decay: float = 1e-3
    """AdamW's decoupled decay, on matrices only (paper: 1e-3)."""
    clip_norm: float = 0.01
    """Bound of the gradient's global norm (paper)."""
    b1: float = 0.9
    """AdamW's first-moment decay."""
    b2: float = 0.999
    """AdamW's second-moment decay."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    remat: bool = True
    """Recompute every dynamics step in the backward pass: time for memory."""
    log_every: int = 50
    """Steps per record of metrics.jsonl."""
    validate_every: int = 1000
    """Steps between validations on held-out windows; 0 never validates."""
    validation_windows: int = 8
    """Held-out windows per validation."""
    checkpoint_every: int = 1000
    """Steps between checkpoints; the last step is always saved."""
    keep_checkpoints: int = 3
    """Checkpoints kept, newest first."""
    max_nonfinite: int = 10
    """Skipped non-finite steps in a row after which the run stops."""
    tensorboard: bool = False
    """Also write TensorBoard event files."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        for key in ("num_steps", "batch_size", "horizon", "num_rays", "log_every",
                    "validation_windows", "checkpoint_every", "keep_checkpoints",
                    "max_nonfinite"):  # fmt: skip
            value = getattr(self, key)
            _require(value >= 1, f"train.{key}", value, "use a positive number")
        _require(
            self.schedule != "piecewise" or len(self.learning_rates) == len(self.boundaries) + 1,
            "train.learning_rates",
            self.learning_rates,
            f"give one rate more than train.boundaries = {self.boundaries}",
        )
        _require(
            len(self.learning_rates) >= 1 and all(rate >= 0 for rate in self.learning_rates),
            "train.learning_rates",
            self.learning_rates,
            "give at least one rate, none of them negative",
        )
        _require(
            list(self.boundaries) == sorted(set(self.boundaries)),
            "train.boundaries",
            self.boundaries,
            "give steps in increasing order",
        )
        _require(
            0 <= self.warmup_steps < self.num_steps,
            "train.warmup_steps",
            self.warmup_steps,
            f"it must lie between 0 and train.num_steps = {self.num_steps}",
        )
        _require(self.moving_ray_weight > 0, "train.moving_ray_weight", self.moving_ray_weight,
                 "use a positive number")  # fmt: skip
        _require(self.clip_norm > 0, "train.clip_norm", self.clip_norm, "use a positive norm")
        _require(self.validate_every >= 0, "train.validate_every", self.validate_every,
                 "use 0 or a positive number")  # fmt: skip


@dataclass(frozen=True)
class EvalConfig:
    """Rollouts on held-out episodes and what is measured on them."""

    num_steps: int = 8
    """Predicted frames per rollout (paper: steps 0..7)."""
    num_episodes: int = 0
    """Held-out episodes; 0 means all."""
    windows_per_episode: int = 3
    """Rollouts per episode, their starts spread evenly from frame 0; a short episode has fewer.
    One from frame 0 alone shows the robot on its way to the objects and little else."""
    controls: tuple[Control, ...] = get_args(Control)
    """What the model is compared with; each costs time."""
    skip_short: bool = False
    """Leave out held-out episodes that are too short for the rollout, instead of stopping."""
    moving_threshold: float = 0.1
    """A pixel moves if a channel differs by more than this from the last observed frame."""
    num_videos: int = 6
    """Episodes exported as mp4 and PNG."""
    seed: int = 0
    """Seed of the choice of particles."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        for key in ("num_steps", "windows_per_episode"):
            value = getattr(self, key)
            _require(value >= 1, f"eval.{key}", value, "use a positive number")
        for key in ("num_episodes", "num_videos", "moving_threshold"):
            value = getattr(self, key)
            _require(value >= 0, f"eval.{key}", value, "use zero or a positive number")


@dataclass(frozen=True)
class Config:
    """One experiment; the defaults are the paper's."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    render: RenderConfig = field(default_factory=RenderConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)


@dataclass(frozen=True)
class SceneSpec:
    """What a model must know of a data set before it can be built.

    Attributes:
      num_robot_points: kinematic points per time step, P.
      workspace_min: lower corner of the workspace box, world frame [m].
      workspace_max: upper corner of the workspace box, world frame [m].
    """

    num_robot_points: int
    workspace_min: tuple[float, float, float]
    workspace_max: tuple[float, float, float]

    @property
    def center(self) -> tuple[float, float, float]:
        """Centre of the workspace box [m]."""
        low, high = self.workspace_min, self.workspace_max
        return (0.5 * (low[0] + high[0]), 0.5 * (low[1] + high[1]), 0.5 * (low[2] + high[2]))

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return dataclasses.asdict(self)
