"""One state from two cameras, edited, and rolled out: the picture that docs/using.md speaks of.

Run: python benchmarks/pictures.py --run runs/demo --data data/demo --episode 9
     --near 0,0,0.05 --radius 0.12 --out edited.png
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np

import hdvpd

mpl.use("agg")

import matplotlib.pyplot as plt


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="runs/demo")
    parser.add_argument("--data", default="data/demo")
    parser.add_argument("--episode", type=int, default=9)
    parser.add_argument("--start", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--near", default="0,0,0.05", help="place of what is edited [m]")
    parser.add_argument("--radius", type=float, default=0.12, help="around it [m]")
    parser.add_argument("--offset", default="0.0,0.3,0.0", help="of the copy [m]")
    parser.add_argument("--out", type=Path, default=Path("edited.png"))
    arguments = parser.parse_args()
    place, offset = (
        tuple(map(float, text.split(","))) for text in (arguments.near, arguments.offset)
    )
    world = hdvpd.load(arguments.run)
    state = world.state_from(arguments.data, arguments.episode, arguments.start)
    targets = world.recorded_targets(
        arguments.data, arguments.episode, arguments.start, arguments.steps
    )
    here = hdvpd.near(place, arguments.radius)
    above = hdvpd.look_at((0.75, 0.05, 1.1), (-0.1, 0.0, 0.1), size=state.size)
    camera = next(iter(state.cameras))
    assert state.frames is not None
    columns = {
        "from above": state,
        "copied": state.copy(here, offset),
        "removed": state.remove(here),
    }
    shown = {
        "observed": (np.asarray(state.frames.rgb)[1, 0], None),
        camera: (
            world.render(state, camera).rgb,
            world.rollout(state, targets).render(camera)[-1],
        ),
    }
    for name, edited in columns.items():
        future = world.rollout(edited, targets)
        shown[name] = world.render(edited, above).rgb, future.render(above)[-1]
    figure, axes = plt.subplots(2, len(shown), figsize=(2.6 * len(shown), 4.2))
    for column, (name, (now, later)) in enumerate(shown.items()):
        axes[0, column].set_title(name, fontsize=9)
        for row, image in enumerate((now, later)):
            axes[row, column].axis("off")
            if image is not None:
                axes[row, column].imshow(image)
    axes[1, 0].text(0.5, 0.5, f"after {arguments.steps} steps", ha="center", fontsize=9)
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
