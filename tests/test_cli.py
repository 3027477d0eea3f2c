import dataclasses
import errno
import inspect
import os
import re
import shlex
import subprocess
import sys
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hdvpd.__main__ import HDVPD, main
from hdvpd.basics.errors import UserError
from hdvpd.commands.base import AbstractCommand, Group, Program
from hdvpd.commands.data import Format
from hdvpd.commands.demo import PHASES, Demo, simulation_flags, summary
from hdvpd.commands.evaluate import Evaluate
from hdvpd.commands.flags import config_flags, flag_words, read_flags, understood
from hdvpd.commands.plan import PlanTask
from hdvpd.commands.train import Train
from hdvpd.config import EvalConfig
from hdvpd.config.experiments import load_config, to_toml
from hdvpd.config.members import with_member
from hdvpd.config.reading import key_types
from hdvpd.config.settings import to_table

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
ROOT = Path(__file__).parent.parent


def verbs() -> Iterator[tuple[str, type[AbstractCommand]]]:
    """Yield every verb as it is typed, and its class."""
    for name, kind in HDVPD.commands.items():
        if isinstance(kind, Group):
            yield from ((f"{name} {second}", inner) for second, inner in kind.commands.items())
        else:
            yield name, kind


VERBS = dict(verbs())


def example(kind: type[AbstractCommand]) -> str:
    """Return the command in a verb's docstring."""
    (found,) = re.findall(r"^Example: (.*)$", inspect.getdoc(kind) or "", re.MULTILINE)
    return found


def run(command: str) -> int:
    return main(command.split())


def words_of(text: str) -> str:
    """Undo the frame and the folding of tyro's boxes."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (
            "fly",
            [
                "no command 'fly'",
                "data, model, train, eval, rollout, plan, compare, view, export, demo",
            ],
        ),
        ("trian demo", ["no command 'trian'", "did you mean `hdvpd train`?"]),
        ("data simluate --out x", ["no command 'simluate'", "did you mean `hdvpd data simulate`?"]),
        ("train", ["name an experiment"]),
        ("train demoo", ["'demoo'", "did you mean 'demo'?"]),
        ("train demo more", ["Unrecognized options: more"]),
        ("train demo --nmae x", ["Unrecognized options: --nmae", "--name RUN"]),
        ("train demo --num-particles 3", ["--num-particles, 3", "--model.num-particles INT"]),
        ("train demo --model.num-particle 3", ["--model.num-particle,", "--model.num-particles"]),
        ("train demo --model.num-particles x", ["--model.num-particles: ", "'x'"]),
        ("train demo --model.dynamics.local mpp", ['"mpp"', "dynamics.local", "nearest is 'mp'"]),
        (
            "train demo --model.local mp",
            ["--model.local is a flag of an earlier version, --model.dynamics.local now"],
        ),
        (
            "train demo --model.dynamics.local mp --model.dynamics.local.num-heads 2",
            ["model.dynamics.local.num_heads = 2", "of this kind has no such setting"],
        ),
        ("train demo --render.far nan", ["render.far = nan", "finite"]),
        (
            "train demo --model.dynamics.attention.num-heads 7",
            ["demo.toml with model.dynamics.attention.num_heads = 7", "latent_dim"],
        ),
        ("train demo --step x", ["--step", "'x'"]),
        ("train --resume nowhere", ["no run to resume at 'nowhere'", "runs, which holds"]),
        ("train --resume runs/none", ["no run to resume at 'runs/none'", "in runs, which holds"]),
        ("train demo --name ../x/y", ["--name ../x/y is a path", "--runs-dir"]),
        ("train demo --name ..", ["--name .. is a path"]),
        ("train --resume auto --name a/b", ["--name a/b is a path"]),
        ("model convert", ["name what to convert", "hdvpd model convert runs/demo"]),
        ("train --resume auto", ["name an experiment"]),
        (
            "train debug --resume first --step 10 --name fork",
            ["--resume first continues that run under its own name", "to runs/fork"],
        ),
        ("train --resume auto --name nowhere", ["nowhere/config.toml does not exist"]),
        ("eval", ["name at least one run"]),
        ("eval runs/demo --step", ["Missing value", "--step"]),
        ("eval runs/demo --model.knn xla", ["Unrecognized", "--model.knn"]),
        ("data simulate", ["Missing from hdvpd data simulate", "--out DIR"]),
        ("data simulate --out x --size 96", ["--size: 96 should be", "96x128"]),
        ("data simulate --out x --size 0x128", ["--size: 0x128 should be", "96x128"]),
        ("data simulate --out x --seed -1", ["--seed: -1 should be 0 or a positive"]),
        ("data synthetic --out x --seed -1", ["--seed: -1 should be 0 or a positive"]),
        ("train demo --train.seed -1", ["train.seed = -1", "use 0 or a positive number"]),
        ("data simulate --out x --train.seed 1", ["Unrecognized", "--train.seed"]),
        ("data import foo bar", ["invalid choice 'foo'", "'folder', 'lerobot', 'robotwin'"]),
        ("doctor --fast", ["Unrecognized options: --fast"]),
        ("study grf --out x", ["python -m studies"]),
    ],
)
def test_mistake_is_one_message_and_status_2(
    command: str, parts: list[str], capsys: Captured
) -> None:
    assert run(command) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert len(printed.err.splitlines()) < 15
    assert "hdvpd: hdvpd" not in printed.err
    for part in parts:
        assert part in words_of(printed.err)


def test_runs_there_are_listed_for_a_wrong_one(tmp_path: Path, capsys: Captured) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text("")
    assert main(["train", "--resume", "third", "--runs-dir", str(tmp_path)]) == 2
    assert "which holds first, second" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "first"),
    [("train debug --runs-dir r", "training r/debug"), ("eval runs/a b", "evaluating runs/a, b")],
)
def test_the_first_word_comes_before_the_slow_imports(command: str, first: str) -> None:
    program = "import sys; sys.modules['orbax'] = None; from hdvpd.__main__ import main; main()"
    words = [sys.executable, "-c", program, *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "No module named 'orbax.checkpoint'" in done.stderr
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
    assert main(["train", "demo", "--debug", "--model.dynamics.attention.num-heads", "7"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [errno.EACCES, errno.ENAMETOOLONG, errno.EIO])
def test_what_the_system_refuses_is_one_message(
    kind: int, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    """As a folder does that may not be entered; not of the tests' user, who may enter all."""
    file = tmp_path / "mine.toml"

    def refuse(path: Path) -> bool:
        raise OSError(kind, os.strerror(kind), str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    assert main(["train", str(file)]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith(f"hdvpd: {file}: {os.strerror(kind)}")
    assert "Name another place" in message
    assert main(["train", str(file), "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone", "ours"), OSError("no file")])
def test_what_may_be_our_mistake_keeps_its_traceback(error: OSError, monkeypatch: Patch) -> None:
    def fail(_: Path) -> bool:
        raise error

    monkeypatch.setattr(Path, "is_file", fail)
    with pytest.raises(OSError, match=str(error.args[-1])):
        main(["train", "mine.toml"])


def test_a_mistake_in_a_file_reaches_the_user(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[model]\nnum_particle = 5\n")
    assert main(["train", str(path)]) == 2
    assert f"{path}: unknown key model.num_particle = 5" in capsys.readouterr().err


def flags_of(verb: type) -> Iterator[dataclasses.Field]:
    """List a verb's flags, those of its groups of flags among them; without the experiment's."""
    for field in dataclasses.fields(verb):
        kind = typing.get_args(field.type)[0] if typing.get_args(field.type) else field.type
        if dataclasses.is_dataclass(kind) and isinstance(kind, type) and field.name != "config":
            yield from flags_of(kind)
        elif "Positional" not in str(field.type) and field.name != "config":
            yield field


@pytest.mark.parametrize("name", VERBS)
def test_help_shows_a_working_example_before_the_flags(name: str, capsys: Captured) -> None:
    assert main([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    shown = example(VERBS[name])
    assert f"Example: {shown}\n" in text[: text.index("show this help")]
    for field in flags_of(VERBS[name]):
        assert f"--{field.name.replace('_', '-')}" in text
    program, *words = shlex.split(shown)
    assert program == "hdvpd"
    assert type(HDVPD.parse(words)) is VERBS[name]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("", "doctor"),
        ("help", "doctor"),
        ("help train", "--model.num-particles INT"),
        ("data", "synthetic"),
        ("data --help", "synthetic"),
        ("help data", "synthetic"),
        ("model", "summary"),
        ("model --help", "summary"),
        ("study --help", "python -m studies"),
        ("train --help", "Particles per time step (paper). (default: 32768)"),
    ],
)
def test_help_is_no_mistake(words: str, shown: str, capsys: Captured) -> None:
    assert run(words) == 0
    printed = capsys.readouterr()
    assert shown in words_of(printed.out)
    assert printed.err == ""


def offered(command: str, capsys: Captured) -> set[str]:
    """Return the keys of the configuration among the flags in a verb's help."""
    assert run(f"{command} --help") == 0
    flags = re.findall(r"--([a-z]+\.[a-z0-9.-]+)", capsys.readouterr().out)
    return {flag.replace("-", "_") for flag in flags} & key_types().keys()


def test_help_lists_the_keys_that_are_accepted(capsys: Captured) -> None:
    assert offered("train", capsys) == set(key_types())
    assert offered("compare", capsys) == set(key_types())
    evaluated = {f"eval.{field.name}" for field in dataclasses.fields(EvalConfig)}
    data = {f"data.{name}" for name in ("path", "cameras", "num_workers", "workers", "prefetch")}
    assert offered("eval", capsys) == evaluated | data
    summarised = offered("model summary", capsys)
    assert {"model.dynamics.num_layers", "render.mlp_width", "train.batch_size"} <= summarised
    assert not {key for key in summarised if key.startswith("eval.")}
    assert "train.learning_rates" not in summarised


def test_version(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hdvpd 0.")


def test_shells_complete_verbs_and_flags(tmp_path: Path, capsys: Captured) -> None:
    assert main(["--tyro-print-completion", "bash"]) == 0
    script = tmp_path / "hdvpd.bash"
    script.write_text(capsys.readouterr().out)

    def completed(*words: str) -> list[str]:
        typed = " ".join(shlex.quote(word) for word in words)
        lines = [
            f"source {script}",
            f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}",
            "$(complete -p hdvpd | sed 's/.*-F \\([^ ]*\\).*/\\1/')",
            'printf "%s\\n" "${COMPREPLY[@]}"',
        ]
        done = subprocess.run(
            ["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert "train" in completed("hdvpd", "tr")
    assert "--model.num-particles" in completed("hdvpd", "train", "--model.num-p")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tyro-print-completion", "tcsh"], "tcsh: give one of bash, zsh, fish"),
        (["train", "--tyro-print-completion"], "give one of bash, zsh, fish"),
        (["--tyro-write-completion", "zsh", "no/_hdvpd"], "make the folder no first"),
    ],
)
def test_a_completion_that_cannot_be_made_is_one_message(
    words, expected, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert expected in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_starts_without_jax() -> None:
    code = (
        "import sys, hdvpd.__main__ as m; m.main(['--help']); m.main(['trian', 'demo', '--x']);"
        "m.main(['eval', '--help']);"
        "print([n for n in ('jax', 'numpy', 'mujoco') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_formats_are_those_of_the_importers() -> None:
    from hdvpd.data.importers import FORMATS

    assert typing.get_args(Format) == tuple(FORMATS)


def test_solvers_are_those_of_planning() -> None:
    from hdvpd.planning.solvers import SOLVERS

    assert typing.get_args(typing.get_type_hints(PlanTask)["solver"]) == tuple(SOLVERS)


def test_flags_come_back_as_tables_of_what_was_given() -> None:
    words = shlex.split(
        "--model.num-particles 96 --model.unet-channels 8 24 --train.seed=-3 --train.no-remat "
        "--train.tensorboard --data.path='a b=c' --model.dynamics.local none --render.far 3 "
        "--train.learning_rates=1e-4 --data.workspace-min -1 -2.5 1e-3 --data.cameras"
    )
    tables = read_flags(words)
    assert tables == {
        "model": {
            "num_particles": 96,
            "unet_channels": (8, 24),
            "dynamics": {"attention": {"mask": {}}, "local": {"kind": "none", "mask": {}}},
        },
        "train": {
            "seed": -3,
            "remat": False,
            "tensorboard": True,
            "learning_rates": (1e-4,),
            "augment": {},
        },
        "data": {"path": "a b=c", "workspace_min": (-1.0, -2.5, 1e-3), "cameras": ()},
        "render": {"far": 3.0},
        "eval": {},
    }
    assert read_flags(flag_words(tables)) == tables


def test_every_value_of_a_configuration_can_be_given_as_a_flag() -> None:
    tables = to_table(with_member(load_config("debug"), "grf_sampled"))
    # A part that is left out is written in short, and read in full.
    tables["model"]["dynamics"]["attention"]["mask"] = {"kind": "none"}
    assert read_flags(flag_words(tables)) == tables


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--train.remat true", "--train.remat"),
        ("--train.remat False --name x", "--train.no-remat --name x"),
        ("--train.remat=true", "--train.remat"),
        ("--train.tensorboard=false", "--train.no-tensorboard"),
        ("demo --name true", "demo --name true"),
        ("--model.dynamics.local mp", "--model.dynamics.local.kind mp"),
        ("--model.dynamics=graph_network", "--model.dynamics.kind=graph_network"),
        ("--data.path true", "--data.path true"),
    ],
)
def test_switches_may_have_a_value_and_parts_their_kind(words: str, meant: str) -> None:
    assert understood(words.split()) == meant.split()


def test_keys_of_earlier_versions_are_answered(monkeypatch: Patch, capsys: Captured) -> None:
    from hdvpd.commands import flags

    monkeypatch.setattr(flags, "REMOVED", {"train.gone": "it is always on"})
    assert main(["train", "debug", "--train.gone", "3"]) == 2
    assert "--train.gone" in (message := capsys.readouterr().err)
    assert "it is always on" in message


def test_every_key_explains_itself() -> None:
    """As the schema's docstrings do; without one the flag would have no help."""
    for section in typing.get_type_hints(config_flags(), include_extras=True).values():
        table, _ = typing.get_args(section)
        for name, kind in typing.get_type_hints(table, include_extras=True).items():
            _, about = typing.get_args(kind)
            assert about.help, name


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
    assert "Unrecognized options: --nonsense" in done.stderr


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
    assert first == load_config("debug", {"train": {"seed": 7}})
    assert keywords == {"run_dir": Path("r/debug"), "resume": "auto", "step": 3}
    assert others == {"run_dir": Path("runs/n"), "resume": None, "step": None}


def test_resuming_a_run_takes_its_own_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from hdvpd import train

    saved = load_config("debug", {"train": {"seed": 5}})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.toml").write_text(to_toml(saved))
    calls: list = []
    monkeypatch.setattr(train, "main", recorder(calls))
    assert main(["train", "--resume", "mine", "--runs-dir", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert f"{tmp_path / 'mine'} has no checkpoint to continue from" in message
    assert "--resume auto --name mine" in message
    (tmp_path / "mine" / "checkpoints" / "1").mkdir(parents=True)
    for resume in (str(tmp_path / "mine"), "mine"):
        flags = ["--runs-dir", str(tmp_path), "--train.num-steps", "99"]
        assert main(["train", "--resume", resume, *flags]) == 0
        (config,), keywords = calls[-1]
        assert (config.train.seed, config.train.num_steps) == (5, 99)
        assert keywords["run_dir"] == tmp_path / "mine"


def test_resuming_says_which_run_goes_on_and_refuses_another_experiment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from hdvpd import train

    calls: list = []
    monkeypatch.setattr(train, "main", recorder(calls))
    run_dir, runs = tmp_path / "sub" / "a2", ["--runs-dir", str(tmp_path)]
    (run_dir / "checkpoints" / "1").mkdir(parents=True)
    for file in (run_dir / "config.toml", run_dir / "checkpoints" / "1" / "config.toml"):
        file.write_text(to_toml(load_config("debug")))
    for resume in ([str(run_dir)], ["sub/a2"], ["auto", "--name", "a2"]):
        place = [*runs[:1], str(run_dir.parent)] if resume[0] == "auto" else runs
        assert main(["train", "debug", "--resume", *resume, *place]) == 0
        assert capsys.readouterr().out.startswith(f"continuing {run_dir}: ")
        assert calls[-1][1]["run_dir"] == run_dir
        assert calls[-1][1]["resume"] in (str(run_dir), "auto")
        assert main(["train", "demo", "--resume", *resume, *place]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert f"{run_dir} was trained with" in printed.err
        assert len(printed.err.splitlines()) == 1
    assert len(calls) == 3
    assert main(["train", "debug", "--resume", "auto", *runs]) == 0
    assert capsys.readouterr().out.startswith(f"training {tmp_path / 'debug'}: ")
    odd = tmp_path / "odd"
    (odd / "checkpoints" / "1").mkdir(parents=True)
    (odd / "config.toml").write_text(to_toml(load_config("debug")))
    (odd / "checkpoints" / "1" / "config.toml").write_text("[[")
    assert main(["train", "debug", "--resume", "odd", *runs]) == 0  # the training names it


def test_eval_passes_runs_and_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    from hdvpd import eval as evaluation

    calls: list = []
    monkeypatch.setattr(evaluation, "main", recorder(calls))
    assert run("eval a b --out o --steps 24 --eval.num-videos 1 --step 5") == 0
    ((runs,), keywords) = calls[0]
    assert runs == [Path("a"), Path("b")]
    from hdvpd.viewing.clips import clip_page

    # The command adds what the evaluation, which knows nothing of pages, leaves open.
    assert keywords.pop("scene_page") is clip_page
    assert keywords == {
        "out": Path("o"),
        "steps": 24,
        "checkpoint_step": 5,
        "overrides": {"data": {}, "eval": {"num_videos": 1}},
        "objects_only": False,
    }


def test_simulate_passes_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    from hdvpd.data.simulation import bimanual

    calls: list = []
    monkeypatch.setattr(bimanual, "simulate", recorder(calls))
    words = "data simulate --out d --episodes 3 --steps 25 --tasks push,can --size 32x48 --seed 9"
    assert main([*words.split(), "--workers", "1"]) == 0
    assert calls == [
        (
            (),
            {
                "out": Path("d"),
                "episodes": 3,
                "steps": 25,
                "tasks": ("push", "can"),
                "size": (32, 48),
                "seed": 9,
                "workers": 1,
            },
        )
    ]


def demo(folder: Path, episodes: int = 20) -> int:
    return Demo(
        data=folder / "data" / "demo",
        runs_dir=folder / "runs",
        experiment="debug",
        episodes=episodes,
        started=time.time() - 61.0,
        config={"train": {"num_steps": 2}},
    ).run()


@pytest.fixture
def phases(monkeypatch: Patch) -> list[list[str]]:
    """Record the demo's phases instead of running them."""
    commands: list[list[str]] = []
    monkeypatch.setattr(Program, "run", lambda _, words: commands.append(list(words)) or 0)
    return commands


def test_demo_runs_the_phases_and_reports_them(
    tmp_path: Path, phases: list[list[str]], capsys: Captured
) -> None:
    assert demo(tmp_path) == 0
    simulate, train, evaluate = (HDVPD.parse(words) for words in phases)  # as typed by hand
    assert [PHASES.parse(words) for words in phases] == [simulate, train, evaluate]
    assert isinstance(train, Train)
    assert train.config["train"] == {"num_steps": 2, "augment": {}}
    assert isinstance(evaluate, Evaluate)
    assert evaluate.runs == (tmp_path / "runs" / "demo",)
    text = capsys.readouterr().out
    assert "install      1 min 01 s" in text
    for phase in ("simulate", "train", "evaluate", "total"):
        assert f"\n{phase:10}   0 min" in text or phase == "total"
    assert str(tmp_path / "runs" / "demo" / "report" / "index.html") in text


def test_demo_stops_at_the_first_failure(tmp_path: Path, monkeypatch: Patch) -> None:
    commands: list[str] = []

    def fail_in_training(_: Program, words: Sequence[str]) -> int:
        commands.append(words[0])
        return 7 if words[0] == "train" else 0

    monkeypatch.setattr(Program, "run", fail_in_training)
    assert demo(tmp_path) == 7
    assert commands == ["data", "train"]


@pytest.mark.usefixtures("phases")
def test_demo_overwrites_nothing(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "demo"
    for number in (1, 2, 3):
        run.mkdir(parents=True)
        (run / "config.toml").write_text(str(number))
        assert demo(tmp_path) == 0
        assert not run.exists()
    kept = sorted(path.read_text() for path in run.parent.glob("demo-*/config.toml"))
    assert kept == ["1", "2", "3"]


def test_demo_refuses_to_move_a_run_that_is_training(tmp_path: Path) -> None:
    from hdvpd.training.run_folder import RunFolder

    run = tmp_path / "runs" / "demo"
    run.mkdir(parents=True)
    (run / "config.toml").write_text("")
    with RunFolder(run).lock(), pytest.raises(UserError, match="Another process is training"):
        demo(tmp_path)
    assert run.exists()


def test_the_shipped_model_is_shown_as_typed_and_nothing_is_trained(
    tmp_path: Path, phases: list[list[str]], monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = HDVPD.parse(["demo", "--pretrained"])
    assert isinstance(command, Demo)
    assert command.run() == 0
    assert [words[:2] for words in phases] == [
        ["data", "simulate"], ["model", "unpack"], ["eval", "runs/reference"]
    ]  # fmt: skip
    assert phases[-1][2:] == ["--data.path", "data/unseen"]
    assert phases[0][2:4] == ["--out", "data/unseen"]  # the demo's own data stay where they are
    told = HDVPD.parse(["demo", "--pretrained", "--train.num-steps", "2"])
    with pytest.raises(UserError, match=r"leave out --train\.num-steps 2"):
        told.run()


@pytest.mark.usefixtures("phases")
def test_demo_reuses_data_of_the_same_settings_only(tmp_path: Path) -> None:
    data = tmp_path / "data" / "demo"
    data.mkdir(parents=True)
    config = load_config("debug").data
    flags = " ".join(simulation_flags(20, config.height, config.width, 0))
    (data / "dataset.json").write_text(
        f'{{"source": {{"command": "hdvpd data simulate {flags}"}}}}'
    )
    assert demo(tmp_path, episodes=20) == 0
    assert (data / "dataset.json").exists()
    assert demo(tmp_path, episodes=2) == 0
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
