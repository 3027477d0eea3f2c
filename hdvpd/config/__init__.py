"""The schema of an experiment: frozen dataclasses whose defaults are the paper's values.

An experiment file (`configs/*.toml`) states only how it differs; see `hdvpd.config.experiments` for
reading, overriding and writing. Exchangeable parts of the model keep their settings beside their
own class (`hdvpd.config.parts` names them); jax is imported with them, when a configuration is
made, and not before.
Lengths are metres, angles radians. "paper" is HD-VPD (arXiv 2406.19800) as restated in
arXiv 2410.03462, App. C.3; every other value is our default and says so.
"""

import abc
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from hdvpd.config.data import DataConfig
from hdvpd.config.parts import DYNAMICS
from hdvpd.config.scene import SceneSpec
from hdvpd.config.settings import (
    Count,
    CountOrZero,
    Free,
    Limit,
    Positive,
    PositiveOrZero,
    Settings,
    check_parts,
    require,
)
from hdvpd.config.training import TrainConfig

Control = Literal[
    "static_render", "copy_last_frame", "kinematics_only", "zero_actions", "shuffled_actions"
]

Backend = Literal["auto", "kdtree", "xla", "open3d", "keops"]
"""Neighbour searches (hdvpd/kernels/neighbors.py)."""
Kernels = Literal["auto", "host", "xla", "pallas"]
"""Forms of operations (hdvpd/kernels/choice.py)."""


class AbstractDynamicsSettings(Settings, abc.ABC):
    """Settings of a dynamics model, and how it is made of them."""

    @abc.abstractmethod
    def make(self, model: "ModelConfig", scene: "SceneSpec", *, rngs: Any) -> Any:
        """Return the model, a `hdvpd.dynamics.base.AbstractDynamics`."""


Up = Literal["none", "x", "y", "z", "-x", "-y", "-z"]
"""Axis of the world that points up, where it is known."""


@dataclass(frozen=True)
class ModelConfig(Settings):
    """The encoder, and what every dynamics model reads; its own settings are in `dynamics`."""

    num_particles: Count = 32768
    """Particles per time step (paper)."""
    feature_dim: Count = 16
    """Features per pixel and particle (paper)."""
    unet_channels: Annotated[
        tuple[int, ...],
        Limit(
            lambda channels: len(channels) >= 1 and all(c >= 8 and c % 8 == 0 for c in channels),
            "give one or more multiples of 8 (GroupNorm has groups of 8)",
        ),
    ] = (32, 64, 128, 128)
    """U-Net width per level, full resolution first."""
    latent_dim: Count = 128
    """Token width."""
    dynamics: Annotated[AbstractDynamicsSettings, DYNAMICS] = field(
        default_factory=lambda: DYNAMICS.make("interlacer")
    )
    """Dynamics model: Interlacer (paper), or the hierarchical graph network of VPD."""
    position_frequencies: CountOrZero = 0
    """Octaves of sines and cosines added to the linear position embedding."""
    position_embedding: bool = True
    """Embed the absolute position in the tokens; without it dynamics is translation-equivariant."""
    carry: bool = False
    """Particles know the motion of the robot's skeleton at their place and can go along with it;
    learned much sooner than from attention alone (not in the papers)."""
    contact: bool = False
    """The robot's particles go along with it; things that it touches are pushed, what it holds goes
    along until it is let go; tokens know what is near and what was touched (not in the papers)."""
    up: Up = "none"
    """Axis of the world that points up, for model.contact; with none, nothing is held or falls."""
    colors: bool = False
    """The first three features are the pixel's colour, and the renderer's colour is relative to
    theirs (not in the papers, whose features are all the U-Net's)."""
    shadow: bool = False
    """With model.colors: the robot's shadow, of one lamp found in recordings (not in papers)."""
    tracking: bool = False
    """The robot lags behind its commands as it did in recordings (not in papers)."""
    stochastic: bool = False
    """With model.contact: rollouts are samples. What is hidden of things, such as where their
    weight rests, is drawn anew for every seed (not in papers)."""
    hidden_spreads: Annotated[
        tuple[float, float, float],
        Limit(lambda x: all(spread >= 0 for spread in x), "spreads are 0 or positive"),
    ] = (0.32, 0.8, 0.006)
    """Standard deviations of what model.stochastic draws: where a thing's weight rests [radii of
    gyration], the logarithm of what resists its turning, and how much earlier it is touched [m].
    `python -m studies spreads` learns them from recordings with objects."""
    even: bool = False
    """Draw particles at even distances along the Z order, instead of independently (not in the
    papers)."""
    near_weight: Positive = 1.0
    """With model.even: how much likelier a pixel within 15 cm of a kinematic point becomes a
    particle than another; 1 draws all alike (paper)."""
    lasting_features: bool = False
    """Particles move and keep their features, instead of changing both (paper)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Numbers that dense layers and convolutions multiply; sums and parameters are always float32.
    bfloat16 is for GPUs: CPUs multiply it no faster."""
    max_displacement: Positive = 0.25
    """Bound of the position change per step and coordinate [m] (paper)."""
    displacement_unit: PositiveOrZero = 0.0
    """Change of position that one unit of the read-out stands for [m]; 0 takes the bound (paper).
    The smaller, the less the optimiser's noise moves what stands still."""
    knn: Backend = "auto"
    """Neighbour search; auto is kdtree on CPU and xla on accelerators."""
    kernels: Kernels = "auto"
    """Fused layers: compiled host code (auto on CPU) or plain JAX; pallas (auto on GPUs by NVIDIA)
    is plain JAX but for the walk attention, with which the paper's training step took three
    quarters of the time on an H100."""

    def check(self) -> None:
        """Let the parts refuse what does not fit the sizes here."""
        require(
            not self.colors or self.feature_dim > 3,
            "feature_dim",
            self.feature_dim,
            "with model.colors, three are the colour and the others are learned: use 4 or more",
        )
        colored = not self.shadow or self.colors
        require(colored, "shadow", self.shadow, "colours are shaded: set model.colors = true")
        remedy = "only particles at even distances are drawn by weight: set model.even = true"
        require(self.near_weight == 1 or self.even, "near_weight", self.near_weight, remedy)
        told_apart = not self.stochastic or self.contact
        remedy = "what is hidden of things is drawn: set model.contact = true"
        require(told_apart, "stochastic", self.stochastic, remedy)
        check_parts(self, self)


@dataclass(frozen=True)
class RenderConfig(Settings):
    """Annular-kernel Point-NeRF renderer."""

    radii: tuple[float, ...] = (0.0, 0.01, 0.02, 0.05)
    """Radii of the annular kernels [m] (paper)."""
    bandwidths: Annotated[
        tuple[float, ...], Limit(lambda x: all(b > 0 for b in x), "bandwidths are positive")
    ] = (0.01, 0.01, 0.01, 0.05)
    """Bandwidths of the annular kernels [m] (paper)."""
    num_neighbors: Count = 16
    """Nearest particles that stand for the kernels' sums (paper)."""
    near: float = 0.1
    """Start of every ray [m] (paper)."""
    far: float = 2.0
    """End of every ray [m] (paper)."""
    num_samples: Count = 64
    """Stratified samples per ray in training."""
    num_proposals: CountOrZero = 32
    """Samples per ray placed near particles in training."""
    eval_num_samples: Annotated[Count, Free("resume")] = 128
    """Stratified samples per ray in evaluation."""
    eval_num_proposals: Annotated[CountOrZero, Free("resume")] = 64
    """Samples per ray placed near particles in evaluation."""
    appearance: Literal["mlp", "particles"] = "mlp"
    """What gives a point its colour and density: the NeRF MLP (paper), or, with model.colors and a
    surface_thickness, the particles around it, of which nothing is learned: their mean colour under
    the innermost kernel, and a constant density."""
    mlp_width: Count = 128
    """Hidden width of the NeRF MLP."""
    mlp_depth: CountOrZero = 2
    """Hidden layers of the NeRF MLP."""
    density_scale: Positive = 100.0
    """Density per metre is this times softplus(raw), times the widest kernel's weight up to 1; with
    appearance = "particles" it is this."""
    surface_thickness: PositiveOrZero = 0.0
    """If above 0, density fades within this of a sheet just behind the surface on which the
    neighbours lie [m], instead of with the widest kernel's weight (not in the papers)."""
    surface_bandwidth: Positive = 0.01
    """Of the weights of the neighbours that span the surface [m]; about the particles' spacing."""
    cutoff: Positive = 0.15
    """Samples farther than this from every particle are empty [m]."""
    supersample: Count = 1
    """Rays per pixel and axis of the image, in training as in images: with 2, a pixel's colour is
    the mean of what four rays see; 1 looks through its centre (default for the paper)."""
    chunk_rays: Annotated[Count, Free("resume")] = 2048
    """Rays rendered at once in a full image; bounds memory."""

    def check(self) -> None:
        """Refuse rays without length and kernels without a bandwidth."""
        require(
            0 < self.near < self.far,
            "near",
            self.near,
            f"it must lie between 0 and far = {self.far}",
        )
        require(
            len(self.radii) == len(self.bandwidths) >= 1,
            "bandwidths",
            self.bandwidths,
            f"give one positive bandwidth per radius {self.radii}",
        )


@dataclass(frozen=True)
class EvalConfig(Settings):
    """Rollouts on held-out episodes and what is measured on them."""

    num_steps: Count = 8
    """Predicted frames per rollout (paper: steps 0..7)."""
    num_episodes: CountOrZero = 0
    """Held-out episodes; 0 means all."""
    windows_per_episode: Count = 3
    """Rollouts per episode, their starts spread evenly from frame 0; a short episode has fewer.
    One from frame 0 alone shows the robot on its way to the objects and little else."""
    controls: tuple[Control, ...] = get_args(Control)
    """What the model is compared with; each costs time."""
    skip_short: bool = False
    """Leave out held-out episodes that are too short for the rollout, instead of stopping."""
    moving_threshold: PositiveOrZero = 0.1
    """A pixel moves if a channel differs by more than this from the last observed frame."""
    num_videos: CountOrZero = 6
    """Episodes exported as mp4 and PNG."""
    seed: CountOrZero = 0
    """Seed of the choice of particles."""
    num_devices: CountOrZero = 1
    """Devices, of every process, that share the windows; 0 takes all. No score depends on it."""


@dataclass(frozen=True)
class Config(Settings):
    """One experiment; the defaults are the paper's."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    render: RenderConfig = field(default_factory=RenderConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: Annotated[EvalConfig, Free("resume", "evaluation")] = field(default_factory=EvalConfig)

    def check(self) -> None:
        """Refuse a renderer or a loss that needs what the particles do not have."""
        require(
            self.render.appearance == "mlp"
            or (self.model.colors and self.render.surface_thickness > 0),
            "render.appearance",
            self.render.appearance,
            "it needs model.colors = true and a render.surface_thickness above 0",
        )
        require(
            not self.train.match_weight or self.model.colors,
            "train.match_weight",
            self.train.match_weight,
            "counterparts are found by colour: set model.colors = true",
        )
        require(
            self.train.patch_size <= min(self.data.height, self.data.width),
            "train.patch_size",
            self.train.patch_size,
            f"images have {self.data.height} by {self.data.width} pixels",
        )
        mirror = self.train.augment.mirror
        require(
            mirror == "none" or not self.model.shadow,
            "train.augment.mirror",
            mirror,
            "the lamp of model.shadow is not mirrored: leave out one of them",
        )
        require(
            mirror == "none" or mirror not in self.model.up,
            "train.augment.mirror",
            mirror,
            f"model.up = {self.model.up!r} would point down: name a horizontal axis",
        )
