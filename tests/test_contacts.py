"""The contact suite: where the fingers pass, what a clip must show, and that it does."""

import extras
import numpy as np
import pytest

from hdvpd.basics.errors import UserError
from hdvpd.data.simulation import bimanual, contacts, plan, scene
from hdvpd.data.simulation import clip as clips

extras.needed("mujoco")


def distance_to_block(contact, place):
    """Distance of a place from the block's side faces, by sampling its outline."""
    x, y, yaw = contact.block
    turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
    half = np.array(contacts.BLOCK.size[:2])
    local = turn.T @ (np.asarray(place)[:2] - [x, y])
    return float(np.linalg.norm(np.maximum(np.abs(local) - half, 0.0)))


def draws(task, count=60):
    for seed in range(count):
        rng = np.random.default_rng(seed)
        xy = rng.uniform([-0.07, -0.10], [0.10, 0.10])
        yield contacts.draw_contact(task, xy, float(rng.uniform(-0.5, 0.5)), rng)


def path_of(contact):
    """Places between touching down and lifting, densely."""
    way, _ = contacts.contact_path(contact)
    begin, end = way[1][1], way[2][1]
    return begin + np.linspace(0, 1, 400)[:, None] * (end - begin)


def test_misses_pass_within_centimetres_and_glances_overlap_an_edge():
    above = 0
    for contact in draws("miss"):
        path = path_of(contact)
        if contact.offset == 0.0:
            above += 1
            gap = path[:, 2] - contacts.FINGERTIP_BELOW_TOOL - 2 * contacts.BLOCK.size[2]
            assert 0.0079 <= gap.min() <= gap.max() <= 0.0301
            continue
        nearest = min(distance_to_block(contact, place) for place in path)
        # Beside a corner the gap is measured across the direction, so it is that or more.
        assert nearest - contacts.FINGERS_HALF_WIDTH >= 0.0079
        assert nearest - contacts.FINGERS_HALF_WIDTH <= 0.036
    assert 5 < above < 35
    for contact in draws("glance"):
        nearest = min(distance_to_block(contact, place) for place in path_of(contact))
        assert nearest <= contacts.FINGERS_HALF_WIDTH - 0.0079


def test_the_can_stands_behind_the_block_or_apart_from_it():
    for task in ("chain", "two"):
        for contact in draws(task):
            gap = distance_to_block(contact, contact.can_xy) - contacts.CAN.size[0]
            assert gap > 0.0
            assert gap > 0.05 or task == "chain"
            away = contact.can_xy - np.array(contact.block[:2])
            assert task == "two" or contact.direction @ away > 0.07


def poses(**moved):
    """A block and a can at rest, of which some go along x by so much at the last frame."""
    stack = np.tile(np.eye(4), (3, 2, 1, 1))
    for number, name in enumerate(("block", "can")):
        stack[2, number, 0, 3] = moved.get(name, 0.0)
    return stack


@pytest.mark.parametrize(
    ("task", "moved", "counts"),
    [
        ("push", {}, True),
        ("miss", {}, True),
        ("miss", {"block": 0.002}, False),
        ("glance", {"block": 0.002}, False),
        ("glance", {"block": 0.01}, True),
        ("chain", {"block": 0.1}, False),
        ("chain", {"block": 0.1, "can": 0.03}, True),
        ("two", {"block": 0.1}, True),
        ("two", {"can": 0.1}, True),
        ("two", {"block": 0.1, "can": 0.002}, False),
        ("two", {}, False),
    ],
)
def test_a_clip_counts_if_it_shows_what_its_task_means(task, moved, counts):
    names = contacts.contact_objects(task) if task != "push" else ("block",)
    assert contacts.came_out(task, names, poses(**moved)[:, : len(names)]) is counts


@pytest.mark.parametrize("task", ["miss", "chain"])
def test_a_simulated_clip_does_so(task):
    clip = clips.simulate_clip(task, steps=12, size=(24, 32), seed=(1, 0))
    names = scene.object_names(task)
    found = clips.frame_poses(clip.model, clip.states, names)
    assert contacts.came_out(task, names, found)
    assert clips.is_reached(task, found)
    colors = scene.object_colors(clip.draw)
    assert tuple(colors) == names
    for name, color in colors.items():
        geom = clip.model.body(name).geomadr[0]
        np.testing.assert_allclose(clip.model.geom_rgba[geom, :3], color, atol=1e-6)
        size = scene.object_shape(name).size
        np.testing.assert_allclose(clip.model.geom_size[geom, : len(size)], size)


def test_draws_of_the_common_tasks_know_nothing_of_the_suite(tmp_path):
    draw = scene.draw_scene("push", np.random.default_rng(0))
    assert draw.contact is None
    with pytest.raises(UserError, match="push, can, sweep, miss, glance, chain, two"):
        bimanual.simulate(tmp_path / "data", episodes=1, tasks=("miss", "throw"))
    assert not (tmp_path / "data").exists()
    plans = plan.draw_plan(draw, 20, np.random.default_rng(1))
    assert set(plans) == {"L", "R"}
