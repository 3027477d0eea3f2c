"""Training: the step, its optimiser, checkpoints, the run folder and what a run reports."""
