"""Candidates per second in the model, against the simulator rendering the same plans.

From one simulated start the same plans are rolled out by the model, in turn and in parallel,
executed by MuJoCo, and executed and rendered by it from both cameras, in one run.

Run: python benchmarks/planning.py --run runs/demo [--plans 32] [--few 8] [--horizon 8]
     [--particles 2048] [--json]
"""

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

import hdvpd
from hdvpd.planning.trials import begin_trial, propose


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="runs/demo")
    parser.add_argument("--plans", type=int, default=32)
    parser.add_argument("--horizon", type=int, default=8)
    parser.add_argument("--few", type=int, default=8, help="plans of all but the first row")
    parser.add_argument("--particles", type=int, default=2048, help="that are rolled out, at most")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    world = hdvpd.load(given.run)
    trial = begin_trial("push", world.size, [10_000, 0, 0])
    plans = propose(trial, world.robot, given.plans, given.horizon, np.random.default_rng(0))
    seen = world.observe(trial.rgb, trial.depth_m, trial.cameras, trial.joints, seed=0)
    state = seen.thinned(given.particles)
    world.rollout(state, plans[:1], features=False)  # compiles
    few = plans[: given.few]
    world.rollout(state, plans[:3], features=False)
    taken = {
        "model, all at once": seconds(lambda: world.rollout(state, plans, features=False)),
        "model, one after the other": seconds(
            lambda: [world.rollout(state, plan[None], features=False) for plan in few]
        ),
        "MuJoCo, physics": seconds(lambda: [trial.execute(plan) for plan in few]),
        "MuJoCo, physics and images": seconds(lambda: [trial.images(plan) for plan in few]),
    }
    counts = dict.fromkeys(taken, len(few)) | {"model, all at once": len(plans)}
    rates = {name: counts[name] / value for name, value in taken.items()}
    ratio = rates["model, all at once"] / rates["MuJoCo, physics and images"]
    particles = int(state.current.mask.sum())
    if given.json:
        numbers = {"particles": particles, "seconds": taken, "candidates/s": rates, "ratio": ratio}
        print(json.dumps(numbers))
        return
    print(f"plans of {given.horizon} steps, {particles} particles, {world.size} px")
    for name, value in taken.items():
        print(f"{name}: {counts[name]} in {value:.1f} s, {rates[name]:.2f} candidates/s")
    print(f"model against MuJoCo with images: {ratio:.2f} times as many candidates per second")


if __name__ == "__main__":
    main()
