"""What can be set in a study of a trained world model; as `settings.py`."""

from dataclasses import dataclass

from studies.settings import require, require_positive


@dataclass(frozen=True)
class ExecutionSettings:
    """Execute in the simulator the plans that `ranking` ranks: needs no model, and only once."""

    tasks: str = "push,can"
    """Tasks, separated by commas."""
    starts: int = 30
    """Starts per task; none is in a simulated data set."""
    plans: int = 32
    """Plans per start."""
    horizon: int = 8
    """Control steps of a plan, at least 4."""
    seed: int = 0
    """Seed of starts, goals and plans."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        require_positive(self, "starts")
        require(self, "plans", self.plans >= 3, "3 or more")
        require(self, "horizon", self.horizon >= 4, "4 or more")


@dataclass(frozen=True)
class RankingSettings(ExecutionSettings):
    """Rank plans by a trained model and by the simulator: correlation, regret, success."""

    run: str = "runs/demo"
    """Run whose model ranks."""
    particles: int = 2048
    """Particles per time step that are rolled out, at most: as many as in training suffice."""
    executed: str = ""
    """Folder of `executions` of the same plans, to which missing ones are added; by default one in
    --out."""


@dataclass(frozen=True)
class ClosedLoopSettings:
    """Model-predictive control in the simulator from images: success, distance, time."""

    run: str = "runs/demo"
    """Run whose model plans; not read where no model does."""
    tasks: str = "push,can"
    """Tasks, separated by commas."""
    starts: int = 20
    """Starts per task; none is in a simulated data set."""
    controllers: str = "all"
    """Who plans, separated by commas: model, carried along, tool path, nothing moves, random,
    simulator."""
    steps: int = 8
    """Control steps in all, at least 4; every plan reaches to the last."""
    every: int = 2
    """Control steps between two decisions."""
    particles: int = 2048
    """Particles per time step that are rolled out, at most; films have all."""
    samples: int = 16
    """Candidates per round of a decision."""
    rounds: int = 1
    """Rounds of iCEM per decision."""
    videos: int = 2
    """Starts per task of which the model's control is filmed."""
    seed: int = 0
    """Seed of starts, goals and plans."""
    controls: str = ""
    """Folder of an earlier study with the same settings: what others than the model did there is
    taken over."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        require_positive(self, "starts", "every", "samples", "rounds", "particles")
        require(self, "steps", self.steps >= 4, "4 or more")


@dataclass(frozen=True)
class FutureSettings:
    """Sample futures of recorded windows: how far the mean, one sample and the best one are off."""

    run: str = "runs/demo"
    """Run whose model predicts; it needs model.contact."""
    data: str = ""
    """Data set with objects, such as `hdvpd data simulate --tasks glance` makes; by default the
    run's."""
    splits: str = "test"
    """Of its episodes, separated by commas."""
    starts: str = "2,8"
    """First frames of the windows, separated by commas."""
    horizon: int = 8
    """Predicted frames."""
    samples: int = 8
    """Futures per window."""
    seed: int = 0
    """Of the first sample."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        require_positive(self, "horizon")
        require(self, "samples", self.samples >= 2, "2 or more")
        require(
            self,
            "starts",
            all(start.isdigit() for start in self.starts.split(",")),
            "frame numbers, separated by commas",
        )


@dataclass(frozen=True)
class SpreadSettings(FutureSettings):
    """Learn from recordings how far what is hidden of things spreads, and judge it on others."""

    splits: str = "train"
    """Episodes to learn from, separated by commas."""
    judged: str = "validation,test"
    """Episodes to judge by, separated by commas."""
    samples: int = 32
    """Futures per window."""
    particles: int = 4096
    """Of a cloud, for speed; 0 takes the run's."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        super().__post_init__()
        require(self, "particles", self.particles >= 0, "0 or more")
