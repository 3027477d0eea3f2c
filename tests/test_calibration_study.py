"""The study of what the calibration check finds runs, goes on, and says what is true."""

import csv

from extras import needed

needed("mujoco")  # the study can take simulated sets

from studies import calibration  # noqa: E402 - behind the question for MuJoCo
from studies.__main__ import main  # noqa: E402


def test_the_command_draws_checks_and_goes_on(tmp_path, monkeypatch, capsys):
    """On a sound set, a turned camera and a joint that is off, of the analytic scene."""
    chosen = [e for e in calibration.ERRORS if e.truth == "joint" or e.size == "3 degrees"]
    monkeypatch.setattr(calibration, "ERRORS", chosen)
    words = ["calibration", "--sound", "1", "--each", "1", "--out", str(tmp_path)]
    assert main(words) == 0
    table = (tmp_path / "calibration.csv").read_text().splitlines()
    rows = {row["error"]: row for row in csv.DictReader(table)}
    assert set(rows) == {"none (sound)", *(error.name for error in chosen)}
    assert rows["none (sound)"]["fail"] == rows["none (sound)"]["correction offered"] == "0/1"
    for error in chosen:
        found = rows[error.name]
        assert found["fail"] == found["named or corrected"] == "1/1"
        assert found["within two of the stated errors"] == "1/1"
    written = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.json")}
    assert len(written) == 3
    (tmp_path / "sound-000.lock").touch()  # of a process that was killed
    assert main(words) == 0
    assert not list(tmp_path.glob("*.lock"))
    assert main([*words, "--seed", "5"]) == 2
    assert "seed was 0, is 5" in capsys.readouterr().err
    assert written == {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.json")}
