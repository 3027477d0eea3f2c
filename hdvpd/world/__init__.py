"""A trained model in use: states, rollouts of any actions, pictures from any camera.

`hdvpd.load` and the classes of this package are the interface for users (docs/using.md); the
command line, the viewer and the planner stand on it. Everything that it hands out is numpy, on the
host; lengths are metres in the world frame, times are control steps.
"""
