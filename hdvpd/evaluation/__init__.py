"""Rollouts on held-out episodes, their scores, curves, videos and the report."""
