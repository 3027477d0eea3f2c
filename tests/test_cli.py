import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hdvpd import __main__ as cli
from hdvpd.__main__ import VERBS, main
from hdvpd.demo import run_demo, simulation_flags, summary
from hdvpd.errors import UserError
from hdvpd.experiments import load_config, to_toml

Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).parent.parent


def run(command: str) -> int:
    return main(command.split())


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("fly", ["no verb 'fly'"]),
        ("trian demo", ["no verb 'trian'", "did you mean `hdvpd train`?"]),
        ("data simluate --out x", ["did you mean `hdvpd data simulate`?"]),
        ("data", ["data simulate", "data inspect"]),
        ("train", ["name an experiment"]),
        ("train demoo", ["'demoo'", "did you mean 'demo'?"]),
        ("train demo more", ["Unrecognized options: more"]),
        ("train demo --nmae x", ["unknown flag --nmae", "--name"]),
        ("train demo --num-particles 3", ["unknown flag --num-particles", "--model.num-particles"]),
        ("train demo --model.num-particle 3", ["--model.num-particle:", "--model.num-particles"]),
        ("train demo --model.num-particles x", ["--model.num-particles x", "expected an integer"]),
        ("train demo --model.num-heads 7", ["demo.toml with --model.num-heads", "latent_dim"]),
        ("train demo --step x", ["--step", "'x'"]),
        ("train --resume nowhere", ["nowhere/config.toml does not exist"]),
        ("train --resume auto", ["name an experiment"]),
        ("train --resume auto --name nowhere", ["nowhere/config.toml does not exist"]),
        ("eval", ["name at least one run"]),
        ("eval runs/demo --step", ["Missing value", "--step"]),
        ("data simulate", ["Missing", "--out DIR"]),
        ("data simulate --out x --size 96", ["--size 96", "96x128"]),
        ("data simulate --out x --size 0x128", ["--size 0x128", "96x128"]),
        ("data simulate --out x --train.seed 1", ["unknown flag --train.seed", "--"]),
        ("doctor --fast", ["unknown flag --fast"]),
    ],
)
def test_mistake_is_one_line_and_status_2(command: str, parts: list[str], capsys: Captured) -> None:
    assert run(command) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("hdvpd: ")
    for part in parts:
        assert part in printed.err


@pytest.mark.parametrize(
    ("command", "first"),
    [("train debug --runs-dir r", "training r/debug"), ("eval runs/a b", "evaluating runs/a, b")],
)
def test_the_first_word_comes_before_the_slow_imports(command: str, first: str) -> None:
    program = "import sys; sys.modules['jax'] = None; from hdvpd.__main__ import main; main()"
    words = [sys.executable, "-c", program, *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: import of jax halted" in done.stderr
    assert done.stdout == f"{first}: loading libraries, data and model ...\n"


@pytest.mark.parametrize(("given", "level"), [(None, "3"), ("0", "0")])
def test_alarms_of_the_compiler_are_left_out_unless_wanted(
    given: str | None, level: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if given:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", given)
    assert main(["--version"]) == 0
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == level


def test_debug_shows_the_traceback(capsys: Captured) -> None:
    assert main(["train", "demo", "--debug", "--model.num-heads", "7"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_mistake_in_a_file_reaches_the_user(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[model]\nnum_particle = 5\n")
    assert main(["train", str(path)]) == 2
    assert f"{path}: unknown key model.num_particle = 5" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(VERBS))
def test_help_begins_with_a_working_example(name: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    example = VERBS[name].example
    before, _, after = text.partition("Example:\n")
    assert "options ─" not in before
    assert after.startswith(f"  {example}\n")
    words = example.split()
    assert words[0] == "hdvpd"
    verb, rest = cli._find_verb(words[1:])
    assert verb == name
    command, _ = cli._parse(verb, rest)
    assert isinstance(command, VERBS[name])


def test_help_of_train_explains_the_configuration(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    assert "--model.num-particles INT" in text
    assert "Particles per time step (paper)" in text


def test_overview_and_version(capsys: Captured) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    for name, verb in VERBS.items():
        assert f"hdvpd {name}" in text
        assert verb.example in text
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hdvpd 0.")


@pytest.mark.parametrize(("words", "status"), [("study grf --out x", 2), ("study --help", 0)])
def test_studies_are_found_where_they_went(words: str, status: int, capsys: Captured) -> None:
    assert run(words) == status
    assert "python -m studies" in capsys.readouterr().out


def test_the_command_starts_without_jax() -> None:
    code = (
        "import sys, hdvpd.__main__ as m; m.main(['--help']); m.main(['train', 'demo', '--x']);"
        "print([n for n in ('jax', 'numpy', 'mujoco') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("launcher", ["train.py", "eval.py"])
def test_launchers_speak_for_their_verb(launcher: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / launcher), "--nonsense"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert f"hdvpd {Path(launcher).stem}: unknown flag --nonsense" in done.stderr


def recorder(record: list, result: object = None) -> Callable:
    def function(*args: object, **kwargs: object) -> object:
        record.append((args, kwargs))
        return result

    return function


def test_train_passes_the_resolved_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    from hdvpd import train

    calls: list = []
    monkeypatch.setattr(train, "main", recorder(calls))
    assert run("train --train.seed 7 debug --runs-dir r --resume auto --step 3") == 0
    assert main(["train", "debug", "--name", "n"]) == 0
    ((first,), keywords), (_, others) = calls
    assert first == load_config("debug", ["--train.seed", "7"])
    assert keywords == {"run_dir": Path("r/debug"), "resume": "auto", "step": 3}
    assert others == {"run_dir": Path("runs/n"), "resume": None, "step": None}


def test_resuming_a_run_takes_its_own_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from hdvpd import train

    saved = load_config("debug", ["--train.seed", "5"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.toml").write_text(to_toml(saved))
    calls: list = []
    monkeypatch.setattr(train, "main", recorder(calls))
    for resume in (str(tmp_path / "mine"), "mine"):
        flags = ["--runs-dir", str(tmp_path), "--train.num-steps", "99"]
        assert main(["train", "--resume", resume, *flags]) == 0
        (config,), keywords = calls[-1]
        assert (config.train.seed, config.train.num_steps) == (5, 99)
        assert keywords["run_dir"] == tmp_path / "mine"


def test_eval_passes_runs_and_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    from hdvpd import eval as evaluation

    calls: list = []
    monkeypatch.setattr(evaluation, "main", recorder(calls))
    assert run("eval a b --out o --steps 24 --eval.num-videos 1 --step 5") == 0
    ((runs,), keywords) = calls[0]
    assert runs == [Path("a"), Path("b")]
    assert keywords == {
        "out": Path("o"),
        "steps": 24,
        "checkpoint_step": 5,
        "overrides": ("--eval.num-videos", "1"),
    }


def test_simulate_passes_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    from hdvpd.data.simulation import bimanual

    calls: list = []
    monkeypatch.setattr(bimanual, "simulate", recorder(calls))
    words = "data simulate --out d --episodes 3 --steps 25 --tasks push,can --size 32x48 --seed 9"
    assert main([*words.split(), "--workers", "1"]) == 0
    assert calls == [
        (
            (Path("d"),),
            {
                "episodes": 3,
                "steps": 25,
                "tasks": ("push", "can"),
                "size": (32, 48),
                "seed": 9,
                "workers": 1,
            },
        )
    ]


def demo(folder: Path, command: Callable[[Sequence[str]], int], episodes: int = 20) -> int:
    return run_demo(
        data=folder / "data" / "demo",
        runs_dir=folder / "runs",
        experiment="debug",
        episodes=episodes,
        started=time.time() - 61.0,
        flags=("--train.num-steps", "2"),
        command=command,
    )


def test_demo_runs_the_phases_and_reports_them(tmp_path: Path, capsys: Captured) -> None:
    commands: list[list[str]] = []
    assert demo(tmp_path, lambda words: commands.append(list(words)) or 0) == 0
    assert [words[0] for words in commands] == ["data", "train", "eval"]
    for words in commands:  # each can be typed by hand
        verb, rest = cli._find_verb(words)
        cli._parse(verb, rest)
    assert "--train.num-steps" in commands[1]
    assert commands[2][1] == str(tmp_path / "runs" / "demo")
    text = capsys.readouterr().out
    assert "install      1 min 01 s" in text
    for phase in ("simulate", "train", "evaluate", "total"):
        assert f"\n{phase:10}   0 min" in text or phase == "total"
    assert str(tmp_path / "runs" / "demo" / "report" / "index.html") in text


def test_demo_stops_at_the_first_failure(tmp_path: Path) -> None:
    commands: list[str] = []

    def fail_in_training(words: Sequence[str]) -> int:
        commands.append(words[0])
        return 7 if words[0] == "train" else 0

    assert demo(tmp_path, fail_in_training) == 7
    assert commands == ["data", "train"]


def test_demo_overwrites_nothing(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "demo"
    for number in (1, 2, 3):
        run.mkdir(parents=True)
        (run / "config.toml").write_text(str(number))
        assert demo(tmp_path, lambda _: 0) == 0
        assert not run.exists()
    kept = sorted(path.read_text() for path in run.parent.glob("demo-*/config.toml"))
    assert kept == ["1", "2", "3"]


def test_demo_refuses_to_move_a_run_that_is_training(tmp_path: Path) -> None:
    from hdvpd.training.run_folder import lock_run

    run = tmp_path / "runs" / "demo"
    run.mkdir(parents=True)
    (run / "config.toml").write_text("")
    with lock_run(run), pytest.raises(UserError, match="Another process is training"):
        demo(tmp_path, lambda _: 0)
    assert run.exists()


def test_demo_reuses_data_of_the_same_settings_only(tmp_path: Path) -> None:
    data = tmp_path / "data" / "demo"
    data.mkdir(parents=True)
    config = load_config("debug").data
    flags = " ".join(simulation_flags(20, config.height, config.width))
    (data / "dataset.json").write_text(
        f'{{"source": {{"command": "hdvpd data simulate {flags}"}}}}'
    )
    assert demo(tmp_path, lambda _: 0, episodes=20) == 0
    assert (data / "dataset.json").exists()
    assert demo(tmp_path, lambda _: 0, episodes=2) == 0
    assert not data.exists()
    assert len(list(data.parent.glob("demo-*/dataset.json"))) == 1


def test_summary_names_a_video(tmp_path: Path) -> None:
    for number in (1, 2):
        video = tmp_path / "eval" / "videos" / f"{number}.mp4"
        video.parent.mkdir(parents=True, exist_ok=True)
        video.touch()
    text = summary({"train": 125.4}, tmp_path)
    assert "train        2 min 05 s" in text
    assert str(tmp_path / "eval" / "videos" / "1.mp4") in text
    assert "1 more" in text


@pytest.mark.parametrize("words", ["--help", "train --help"])
def test_a_reader_of_the_output_may_leave(words):
    """As `head` does; there is nobody to complain to."""
    command = f"{sys.executable} -m hdvpd {words} | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
