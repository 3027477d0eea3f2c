"""High-Density Visual Particle Dynamics: learned 3-D world models from robot RGB-D video."""

__version__ = "0.1.0"
