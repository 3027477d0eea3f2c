"""Encoders: RGB-D frames to particles."""
