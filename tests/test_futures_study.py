"""The study of sampled futures: its scores, its table, and that it goes on where it was stopped."""

import dataclasses
import json

import numpy as np
import pytest

from hdvpd.basics.errors import UserError
from studies import futures
from studies.model_settings import FutureSettings


def test_scores_are_their_definitions():
    """One particle that is judged goes 3 cm along x; another, far off, is nobody's."""
    truth = np.zeros((2, 2, 3))
    truth[:, 0, 0] = 0.03
    likeliest, samples = truth + [0.004, 0, 0], np.repeat(truth[None], 2, axis=0)
    samples[0, :, 0] += [0.001, 0, 0]
    samples[1, :, 0] += [0, 0.003, 0]
    samples[:, :, 1] += 7.0
    found = futures.scores(likeliest, samples, truth, np.array([True, False]))
    mean = np.array([0.0005, 0.0015])
    expected = [0.004, np.linalg.norm(mean), 0.002, 0.001, np.linalg.norm([0.0005, 0.0015])]
    np.testing.assert_allclose([found[name] for name in futures.COLUMNS], expected, rtol=1e-9)
    unjudged = futures.scores(likeliest, samples, truth, np.zeros(2, bool))
    assert all(np.isnan(list(unjudged.values())))


def test_the_table_counts_an_episode_once():
    def entry(episode, task, likeliest, best):
        values = (likeliest, likeliest, likeliest + 0.001, best, 0.002)
        named = dict(zip(futures.COLUMNS, values, strict=True))
        return {"episode": episode, "start": 0, "task": task} | named

    entries = [
        entry(1, "push", 0.010, 0.008), entry(1, "push", 0.020, 0.018),
        entry(2, "push", 0.005, 0.003), entry(3, "can", 0.010, 0.010),
        entry(4, "can", float("nan"), float("nan")),
    ]  # fmt: skip
    can, push, whole, ahead = futures.summary(entries)
    assert (can["[mm]"], can["windows"], can["episodes"]) == ("can", 2, 2)
    assert can["likeliest"] == "10.0"
    assert (push["windows"], push["episodes"], push["likeliest"]) == (3, 2, "10.0")
    assert whole["[mm]"] == "all"
    assert whole["likeliest"].startswith("10.0 ± ")
    assert ahead["likeliest"] == "+0.00 ± 0.00"
    assert ahead["one sample"] == "+1.00 ± 0.00"
    # -2, -2 and 0 over three episodes: 4.303 times their standard error.
    half = 4.3027 * np.std([-2, -2, 0], ddof=1) / np.sqrt(3)
    assert ahead["best sample"] == f"-1.33 ± {half:.2f}"
    assert not ahead["about their mean"]


def test_the_study_goes_on_where_it_was_stopped(small_world, tmp_path, monkeypatch, capsys):
    """The tiny model has no contact, so both of its worlds are one, whose samples are alike."""
    monkeypatch.setattr(futures, "load", lambda run, stochastic: small_world)
    settings = FutureSettings(splits="validation", starts="0", horizon=3, samples=2)
    futures.main(tmp_path / "out", settings)
    (first,) = map(json.loads, (tmp_path / "out" / "starts.jsonl").read_text().splitlines())
    assert (first["episode"], first["start"]) == (8, 0)
    alike = [first[name] for name in futures.COLUMNS]
    np.testing.assert_allclose(alike[:4], alike[0], rtol=1e-5)
    assert alike[0] > 0.001
    assert alike[4] == pytest.approx(0, abs=1e-7)

    scored = []
    score = futures.score_window
    monkeypatch.setattr(
        futures, "score_window", lambda *args: scored.append(args[3]) or score(*args)
    )
    futures.main(tmp_path / "out", dataclasses.replace(settings, splits="validation,test"))
    assert scored == [{"episode": 9, "start": 0}]
    assert (tmp_path / "out" / "futures.md").read_text() in capsys.readouterr().out
    rows = (tmp_path / "out" / "futures.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[-2:]] == ["all", '"all']
    with pytest.raises(UserError, match=r"samples was 2, is 3.*--out"):
        futures.main(tmp_path / "out", dataclasses.replace(settings, samples=3))
    with pytest.raises(UserError, match=r"in no window .* --starts"):
        futures.main(tmp_path / "none", dataclasses.replace(settings, starts="90"))


def test_mistakes_are_refused():
    with pytest.raises(UserError, match="--samples 1: expected 2 or more"):
        FutureSettings(samples=1)
    with pytest.raises(UserError, match="--starts 2,x: expected frame numbers"):
        FutureSettings(starts="2,x")
