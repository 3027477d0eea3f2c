"""What `hdvpd data check` costs where it fails, against where it passes.

Writes one data set of the analytic scene, and copies with an error of one camera each; checks them
in turn, pictures and page included, and prints seconds of CPU and their ratio to what passes.

Run: OMP_NUM_THREADS=1 python benchmarks/calibration.py [--size 96x128] [--episodes 8] [--rounds 2]
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hdvpd.basics.tables import Table
from hdvpd.data import metadata, store, writer
from hdvpd.data.calibration.check import check
from hdvpd.data.calibration.report import write_report
from hdvpd.data.pinhole import AXES
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from studies.calibration_sets import motion

POSE = "cameras/cam1/camera_to_world"
ERRORS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none: it passes": lambda pose: pose,
    "turned by 3 degrees, moved by 3 cm": lambda pose: (
        pose @ motion(np.random.default_rng(0), 3.0, 0.03)
    ),
    "OpenGL axes": lambda pose: pose @ AXES["opengl"],
}


def damaged(good: Path, path: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Copy a data set, one camera's pose changed."""
    source = store.Dataset(good)
    writer.make_dataset(path)
    for file in good.glob("*.json"):
        shutil.copy(file, path / file.name)
    for episode in source.episodes:
        folder = writer.episode_folder(good, episode.number)
        names = [str(f.parent.relative_to(folder)) for f in folder.rglob("zarr.json")]
        arrays = source.read_many(episode.number, names)
        meta = metadata.read_json(folder / "episode.json")
        writer.write_episode(path, episode.number, meta, arrays | {POSE: change(arrays[POSE])})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", default="96x128")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    height, width = map(int, args.size.split("x"))
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_synthetic_dataset(
            folder / "good", episodes=args.episodes, steps=20, height=height, width=width, seed=0
        )
        for k, change in enumerate(ERRORS.values()):
            damaged(folder / "good", folder / str(k), change)
        seconds: dict[str, list[float]] = {name: [] for name in ERRORS}
        verdicts = {}
        for _ in range(args.rounds + 1):
            for k, name in enumerate(ERRORS):
                start = time.process_time()
                report = check(folder / str(k), backend="scipy")
                write_report(report, folder / f"check{k}")
                seconds[name].append(time.process_time() - start)
                verdicts[name] = report.verdict
    # The first round loads libraries.
    least = {name: min(values[1:]) for name, values in seconds.items()}
    first = least["none: it passes"]
    rows = [[n, verdicts[n], f"{least[n]:.2f}", f"{least[n] / first:.2f}"] for n in ERRORS]
    print(Table(["error", "verdict", "CPU [s]", "of passing"], rows, args.size).markdown())


if __name__ == "__main__":
    main()
