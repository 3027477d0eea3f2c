"""Forward kinematics of the two simulated arms: joint targets to link poses and kinematic points.

Poses per second on one core, side by side in one run with the loop that the simulator writes its
data sets by; both are MuJoCo's kinematics and give the same poses. With a data set, also how far
the links lie from the poses stored there.

Run: python benchmarks/kinematics.py [--poses 4000] [--data data/demo]
"""

import argparse
from pathlib import Path

import numpy as np
from timing import interleaved

from hdvpd.data.adding_robot import largest_error
from hdvpd.data.importers.robot_model import load_mujoco
from hdvpd.data.robot import Robot, read_robot
from hdvpd.data.simulation import bimanual, clip, scene
from hdvpd.data.store import Dataset


def main() -> None:
    """Print rates, their ratio, and the distance between both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--poses", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=Path, help="simulated data set with stored link poses")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    robot = Robot(bimanual.robot(), Path("simulated"))
    joints = rng.uniform(np.clip(robot.limits[:, 0], -2, 0), robot.limits[:, 1],
                         (arguments.poses, len(robot.joints)))  # fmt: skip
    joints = np.maximum(joints, robot.limits[:, 0])
    model = load_mujoco().MjModel.from_xml_string(
        scene.scene_xml(scene.draw_scene("push", rng), height=16, width=16)
    )
    states = clip.with_joints(model, np.tile(model.qpos0, (len(joints), 1)), joints)
    functions = {
        "Robot.link_poses": lambda: robot.link_poses(joints),
        "Robot.points": lambda: robot.points(joints),
        "simulator's loop": lambda: clip.frame_poses(model, states, robot.links),
    }
    times = interleaved(functions, arguments.repeats)
    for name, value in times.items():
        print(f"{name:20s} {arguments.poses / value * 1e3:9.0f} poses/s")
    ratio = times["simulator's loop"] / times["Robot.link_poses"]
    away = np.abs(functions["simulator's loop"]() - functions["Robot.link_poses"]()).max()
    print(f"link_poses is {ratio:.1f} times as fast as that loop; they differ by {away:.1g}")
    if arguments.data:
        stored = read_robot(arguments.data) or robot
        error, where = largest_error(Dataset(arguments.data), stored)
        print(f"largest distance from a stored link: {1e3 * error:.3f} mm ({where})")


if __name__ == "__main__":
    main()
