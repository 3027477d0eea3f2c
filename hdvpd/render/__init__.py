"""Rendering: annular kernels around particles, a NeRF MLP and volume compositing."""
