"""Proof of a data set's calibration: measures, verdicts, named mistakes, report and pictures.

`check.check` is what `hdvpd data check` runs. Everything is numpy in float64; nothing compiles.
"""

from typing import Literal

Backend = Literal["auto", "open3d", "scipy"]
"""Libraries for the nearest-point search; auto takes Open3D where it is installed."""
