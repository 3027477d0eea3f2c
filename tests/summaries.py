"""Objects of metrics.json with known differences, for the tests of words and pages."""

import numpy as np

from hdvpd.evaluation import curves

STEPS = 3


def make_summary(ahead=None, *, noise=0.01, episodes=6):
    """A summary in which the model is ahead of every control by 0.1, or by `ahead` of it."""
    rng = np.random.default_rng(0)
    predictors = curves.PREDICTORS
    images = np.empty((episodes, len(predictors), 2, STEPS, 4))
    images[:, 0] = rng.uniform(0.4, 0.6, size=(episodes, 2, STEPS, 4))
    for i, control in enumerate(predictors[1:], 1):
        behind = (ahead or {}).get(control, 0.1)
        images[:, i] = images[:, 0] - behind + noise * rng.normal(size=(episodes, 1, 1, 1))
    depth = rng.uniform(size=(episodes, 2, STEPS, 2))
    numbers = tuple(range(episodes))
    scores = curves.Scores("demo", ("front", "side"), numbers, predictors, images, depth)
    windows = [{"episode": number, "start": 0} for number in numbers]
    settings = {"moving_threshold": 0.1, "checkpoint_step": 700, "windows": windows}
    return curves.summarize(scores, settings)
