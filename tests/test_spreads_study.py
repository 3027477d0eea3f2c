"""The study that learns the spreads of what is hidden: its fit, its score, and that it goes on."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hdvpd.basics.errors import UserError
from hdvpd.dynamics.identity import Identity
from hdvpd.model import Model
from hdvpd.world.base import World
from studies import spreads
from studies.model_settings import SpreadSettings

EFFECT_M = np.asarray([0.06, 0.05, 0.04])
"""How far one unit of middle, turning and margin moves a thing, each along an axis of its own."""


def happened(rng, true, windows):
    """Draw windows whose hidden values spread as `true`, and futures of a unit normal proposal."""
    hidden = rng.normal(size=(windows, 3)) * true
    ways = rng.normal(size=(windows, 3))
    off_m = rng.gamma(3, 0.006, size=(windows, 1))  # its density in space is exp(-e / 6 mm)
    ends = EFFECT_M * hidden + off_m * ways / np.linalg.norm(ways, axis=1, keepdims=True)
    draws = rng.normal(size=(windows, 200, 5))
    reached = EFFECT_M * draws[..., [0, 3, 4]]
    apart = np.linalg.norm(reached[:, :, None] - reached[:, None], axis=-1)
    return draws, np.linalg.norm(reached - ends[:, None], axis=-1), apart


def test_the_fit_finds_the_spreads_that_recordings_have():
    """`middle` has three directions, of which here only one does anything."""
    true = np.asarray([0.6, 0.3, 0.5])
    draws, errors, _ = happened(np.random.default_rng(0), true, 600)
    found = spreads.learn_spreads(draws, errors)
    np.testing.assert_allclose(found, true, rtol=0.2)


def test_the_fit_stays_within_its_draws_and_survives_futures_that_are_all_alike():
    draws, errors, _ = happened(np.random.default_rng(1), np.asarray([3.0, 3.0, 3.0]), 60)
    assert (spreads.learn_spreads(draws, errors) <= 1).all()
    for same in (0.0, 0.01):
        found = spreads.learn_spreads(draws, np.full_like(errors, same))
        assert np.isfinite(found).all()
        assert (found > 0).all()


def test_the_energy_score_is_its_definition_and_least_for_the_true_spreads():
    rng, true = np.random.default_rng(2), np.asarray([0.6, 0.6, 0.6])
    draws, errors, apart = happened(rng, true, 200)
    energy, single = spreads.energy_score(draws, errors, apart, np.ones(3))
    np.testing.assert_allclose(single, errors.mean(1))
    pairs = [apart[:, i, j] for i in range(200) for j in range(200) if i != j]
    np.testing.assert_allclose(energy, errors.mean(1) - np.mean(pairs, axis=0) / 2)
    scores = [
        spreads.energy_score(draws, errors, apart, np.full(3, spread))[0].mean()
        for spread in (0.3, 0.6, 1.0)
    ]
    assert np.argmin(scores) == 1


@pytest.fixture
def stochastic_world(small_world):
    """An untrained model whose things are told apart, on the data of `small_world`."""
    kind = dataclasses.replace(
        small_world.config.model,
        carry=True, contact=True, colors=True, lasting_features=True, stochastic=True, up="z",
        feature_dim=6,
    )  # fmt: skip
    config = dataclasses.replace(small_world.config, model=kind)
    model = Model(config, small_world.scene, rngs=nnx.Rngs(0))
    return World(
        model, config, small_world.scene, small_world.step, small_world.folder, small_world.setup
    )


def test_the_study_goes_on_where_it_was_stopped(stochastic_world, tmp_path, monkeypatch, capsys):
    """The model is not trained, so it is told that nothing it sees is the robot's."""
    monkeypatch.setattr(Identity, "is_robot", lambda self, cloud, *_: jnp.zeros_like(cloud.mask))
    monkeypatch.setattr(spreads, "load", lambda run, stochastic: stochastic_world)
    settings = SpreadSettings(
        splits="validation", judged="test", starts="0", horizon=2, samples=4, particles=512
    )
    spreads.main(tmp_path / "out", settings)
    kept = tmp_path / "out" / "starts.jsonl"
    entries = list(map(json.loads, kept.read_text().splitlines()))
    assert [entry["episode"] for entry in entries] == [8, 9]
    draws = np.asarray([entry["draws"] for entry in entries])
    assert draws.shape == (2, 4, 5)
    # In units of the proposal, and others for every future.
    assert 0.3 < draws.std() < 2
    assert len(np.unique(draws)) == draws.size
    table = (tmp_path / "out" / "spreads.md").read_text()
    assert table in capsys.readouterr().out
    before = kept.read_bytes()
    monkeypatch.setattr(spreads, "_score", None)
    spreads.main(tmp_path / "out", settings)
    assert kept.read_bytes() == before
    assert (tmp_path / "out" / "spreads.md").read_text() == table
    with pytest.raises(UserError, match=r"samples was 4, is 5.*--out"):
        spreads.main(tmp_path / "out", dataclasses.replace(settings, samples=5))
    with pytest.raises(UserError, match=r"no window of the splits validation .* --starts"):
        spreads.main(tmp_path / "none", dataclasses.replace(settings, starts="90"))
    (tmp_path / "out" / "checkpoint.json").write_text("of the run as it was before")
    with pytest.raises(UserError, match=r"another checkpoint than step .*--out"):
        spreads.main(tmp_path / "out", settings)
