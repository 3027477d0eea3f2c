import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdvpd.basics.errors import UserError
from hdvpd.data import schema
from hdvpd.data.simulation import synthetic

FILE = Path("somewhere/dataset.json")
EPISODE_FILE = Path("somewhere/episodes/000003/episode.json")


@pytest.fixture
def raw() -> dict[str, Any]:
    return json.loads(json.dumps(synthetic.describe(24, 32)))


def test_unknown_keys_are_kept_and_ignored(raw):
    raw["colour_of_the_sky"] = "blue"
    raw["cameras"]["cam0"]["serial"] = 17
    info = schema.parse_dataset(raw, FILE)
    assert info.raw["colour_of_the_sky"] == "blue"
    assert info.cameras["cam0"] == schema.CameraInfo(24, 32, 1.0, "world")


def test_without_a_skeleton_every_link_is_a_point_and_every_pair_a_segment(raw):
    raw["robot"].pop("skeleton")
    skeleton = schema.parse_dataset(raw, FILE).robot.skeleton
    assert skeleton.points == (0, 1, 2)
    assert skeleton.segments == ((0, 1), (1, 2))
    assert set(skeleton.grippers) == {-1}
    assert len(skeleton.grippers) == skeleton.num_points == 11


def test_a_skeleton_of_null_is_none(raw):
    raw["robot"]["skeleton"] = None
    assert schema.parse_dataset(raw, FILE).robot.skeleton.points == (0, 1, 2)


@pytest.mark.parametrize(("unit", "expected"), [("m", 0.05), ("rad", 1.0), ("1", 1.0), (None, 1.0)])
def test_a_gripper_is_of_order_one_in_the_unit_of_its_joint(raw, unit, expected):
    joint = next(j for j in raw["robot"]["joints"] if j["name"] == "grip")
    joint |= {"unit": unit} if unit else {}
    if unit is None:
        del joint["unit"]
    skeleton = schema.parse_dataset(raw, FILE).robot.skeleton
    has_gripper = np.array(skeleton.grippers) >= 0
    assert has_gripper.any()
    np.testing.assert_array_equal(np.array(skeleton.gripper_units)[has_gripper], expected)


def _set(raw: Any, path: str, value: Any) -> None:
    *parents, last = (key.replace("\\", "/") for key in path.split("/"))
    for key in parents:
        raw = raw[int(key)] if isinstance(raw, list) else raw[key]
    raw[last] = value


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("format", "lerobot", ["hdvpd-dataset", "simulate"]),
        ("version", 2, ["version 2", "version 1"]),
        ("cameras", {}, ["cameras", "at least one"]),
        ("cameras", [], ["cameras", "[]"]),
        ("cameras/cam0/height", "24", ["cameras.cam0.height", "'24'", "int"]),
        ("cameras/cam0/height", 0, ["cam0", "height 0", "positive"]),
        ("cameras/cam0/height", True, ["cameras.cam0.height", "True"]),
        ("cameras/cam1/axes", "opengl", ["cam1.axes", "opengl", "opencv"]),
        ("cameras/cam1/depth_unit_m", 0, ["cam1", "depth_unit_m 0.0", "positive"]),
        ("cameras/cam1/mount", "wrist", ["cam1.mount = 'wrist'", "no link", "elbow", "'world'"]),
        ("cameras/front\\cam", {"height": 2, "width": 2}, ["camera 'front/cam'", "without /"]),
        ("rate_hz", "fast", ["rate_hz", "'fast'", "number"]),
        ("rate_hz", -1, ["rate_hz = -1.0", "positive"]),
        ("rate_hz", math.inf, ["rate_hz = inf", "finite number"]),
        pytest.param("rate_hz", 10**400, ["rate_hz = 1000", "finite number"], id="huge"),
        ("cameras/cam1/depth_unit_m", math.inf, ["cam1.depth_unit_m = inf", "finite number"]),
        ("workspace/max", [1, math.inf, 1], ["workspace.max = [1, inf, 1]", "finite numbers"]),
        ("workspace/min", [math.nan, 0, 0], ["workspace.min = [nan, 0, 0]", "finite numbers"]),
        ("source", "recorded in our lab", ["source = 'recorded in our lab'", "object"]),
        ("workspace/min", [0, 0], ["workspace.min", "[0, 0]", "three finite numbers"]),
        ("workspace/max", [-1, 1, 1], ["workspace.max", "below"]),
        ("robot/links", [{"parent": "base"}], ["robot.links.name", "missing"]),
        ("robot/links", ["base"], ["robot.links", "objects"]),
        ("robot/joints/1/name", "shoulder", ["robot.joints", "'shoulder'", "twice"]),
        ("robot/skeleton/points", ["hand"], ["robot.skeleton.points", "'hand'", "elbow"]),
        ("robot/skeleton/segments", [["base"]], ["segments", "pairs"]),
        ("robot/skeleton/arms", {"left": {"gripper": "x"}}, ["arms.left.gripper", "'x'"]),
        ("robot/skeleton", {"points": [], "segments": []}, ["no kinematic points"]),
        ("robot/skeleton", ["base"], ["robot.skeleton = ['base']", "object"]),
        ("robot/skeleton", [], ["robot.skeleton = []", "object"]),
        ("robot/skeleton/points", None, ["robot.skeleton.points = None", "list"]),
        ("robot/skeleton/points", "base", ["robot.skeleton.points = 'base'", "list"]),
        ("robot/skeleton/segments", None, ["robot.skeleton.segments = None", "list"]),
        ("robot/skeleton/arms", ["left"], ["robot.skeleton.arms = ['left']", "object"]),
    ],
)
def test_an_impossible_description_is_one_message_with_file_key_and_value(raw, path, value, words):
    _set(raw, path, value)
    with pytest.raises(UserError) as caught:
        schema.parse_dataset(raw, FILE)
    message = str(caught.value)
    assert str(FILE) in message
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("key", ["cameras", "robot", "workspace", "rate_hz"])
def test_a_missing_key_is_named(raw, key):
    del raw[key]
    with pytest.raises(UserError, match=key):
        schema.parse_dataset(raw, FILE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"length": 0}, ["length = 0", "at least 1"]),
        ({"length": "7"}, ["length", "'7'"]),
        ({"split": "holdout"}, ["'holdout'", "train, validation, test"]),
        ({"success": "yes"}, ["success = 'yes'", "true or false"]),
    ],
)
def test_an_impossible_episode_is_one_message(change, words):
    with pytest.raises(UserError) as caught:
        schema.parse_episode({"length": 7, "split": "train"} | change, 3, EPISODE_FILE)
    for word in [str(EPISODE_FILE), *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("episodes", [1, 2, 3, 9, 10, 37])
def test_splits_partition_the_episodes_and_train_is_never_empty(episodes):
    splits = [schema.split_of(n, episodes) for n in range(episodes)]
    assert splits.count("train") >= 1
    assert splits.count("test") == (episodes // 10 if episodes >= 10 else int(episodes >= 2))
    assert splits.count("validation") == (
        (episodes + 1) // 10 if episodes >= 10 else int(episodes >= 3)
    )


def test_growing_a_data_set_of_ten_or_more_keeps_every_split():
    assert [schema.split_of(n, 10) for n in range(10)] == [
        schema.split_of(n, 60) for n in range(10)
    ]
