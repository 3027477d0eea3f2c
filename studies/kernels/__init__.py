"""Loops of those masks, in the forms of `hdvpd.kernels`."""
