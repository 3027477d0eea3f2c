"""High-Density Visual Particle Dynamics: learned 3-D world models from robot RGB-D video.

What a script needs is here by its own name (docs/api.md), and loaded when it is first asked for:
`import hdvpd` alone loads nothing. Type checkers read the same names in `__init__.pyi`.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Camera": "basics.types",
    "Config": "config",
    "Dataset": "data.store",
    "Future": "world.future",
    "Images": "world.future",
    "Model": "model",
    "ParticleCloud": "basics.types",
    "RgbdFrames": "basics.types",
    "RobotPoints": "basics.types",
    "State": "world.state",
    "UserError": "basics.errors",
    "World": "world.base",
    "eval": "evaluation",
    "inside": "world.state",
    "load": "world.loading",
    "load_config": "config.experiments",
    "load_model": "training.checkpoints",
    "look_at": "world.frames",
    "make_env": "world.loading",
    "near": "world.state",
    "train": "training",
}
"""Where every public name is, below hdvpd."""
_MODULES = {"eval", "train"}
"""Names of modules."""

__all__ = ["__version__", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hdvpd' has no attribute {name!r}", name=name, obj=None)
    home = f"hdvpd.{_HOMES[name]}"
    if name in _MODULES:
        return importlib.import_module(f"{home}.{name}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
