"""Dynamics: how particles change under the robot's motion."""
