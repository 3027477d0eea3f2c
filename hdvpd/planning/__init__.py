"""Plans chosen by a world model: costs on predictions, spaces of plans, solvers, the planner."""
