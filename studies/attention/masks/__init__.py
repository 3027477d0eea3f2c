"""Masks of sequences, grids, trees, hypercubes and whole series, and masks made of masks."""
