"""What the verbs `view` and `export` do."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hdvpd.basics.errors import UserError, how_to_install
from hdvpd.training.packed import REFERENCE
from hdvpd.training.run_folder import RunFolder
from hdvpd.viewing.rollouts import RolloutSource
from hdvpd.viewing.runs import RunSource
from hdvpd.viewing.sources import AbstractSource, DatasetSource
from hdvpd.world.outputs import ROLLOUT_FILE


def require(module: str, extra: str, purpose: str) -> None:
    """Refuse what needs a package that is not installed.

    Raises:
      UserError: naming the package and how it is installed.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{purpose} needs {module}, which cannot be imported ({error}): "
            f"{how_to_install(extra)}."
        ) from error


_UNSET: Mapping[str, Any] = {
    "split": None, "episode": None, "start": 0, "actions": (), "steps": None,
    "checkpoint_step": None,
}  # fmt: skip
"""What can be chosen of a source, and its value where nothing was."""


def _refuse_flags(chosen: Mapping[str, Any], why: str) -> None:
    """Refuse what was chosen of a source that has no use for it.

    Raises:
      UserError: naming the flags with their values, then saying why.
    """
    flags = []
    for name, value in chosen.items():
        if value != _UNSET[name]:
            told = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            flags.append(f"--{'step' if name == 'checkpoint_step' else name} {told}")
    if flags:
        raise UserError(f"{', '.join(flags)}: {why}")


def open_source(path: Path, **chosen: Any) -> AbstractSource:
    """Open whatever a folder holds.

    Args:
      path: of a run, of a data set or of a rollout, or the name of a run in `runs/`; `reference` is
        the model that comes with hdvpd, which becomes a run there.
      **chosen: of a run: see `RunSource`; of a data set: `episode`, the only one to show.

    Raises:
      UserError: the folder holds none of them, is damaged, has no such episode, or has no use for
        something that was chosen.
    """
    if (path / ROLLOUT_FILE).is_file():
        _refuse_flags(
            chosen,
            f"{path} holds plans, which are rolled out as they were written. Leave this out, or "
            "name the run that made them.",
        )
        return RolloutSource(path)
    if (path / "dataset.json").is_file() and not (path / "config.toml").is_file():
        _refuse_flags(
            {name: value for name, value in chosen.items() if name != "episode"},
            f"{path} is a data set, whose episodes are shown as they were recorded. Leave this "
            "out, or name a run, such as runs/demo, to see rollouts.",
        )
        return DatasetSource(path, chosen.get("episode"))
    if str(path) == REFERENCE or RunFolder.search(path) is not None:
        return RunSource(path, **chosen)
    raise UserError(
        f"{path} is neither the folder of a run (it has no config.toml) nor a data set (it has no "
        f"dataset.json) nor a rollout (it has no {ROLLOUT_FILE}). Name one, such as runs/demo."
    )


def view(path: Path, *, host: str, port: int, **chosen: Any) -> int:
    """Serve a page until a signal comes; return the exit status, see `serving.serve`.

    Args:
      path: see `open_source`.
      host: this machine's address at which it listens.
      port: 0 takes any that is free.
      **chosen: see `open_source`.

    Raises:
      UserError: a package is missing, there is nothing to show, or the port is in use.
    """
    require("viser", "view", "hdvpd view")
    from hdvpd.viewing.serving import require_free, serve

    require_free(host, port)
    return serve(open_source(path, **chosen), host, port)


FORMATS: Mapping[str, str] = {"rerun": ".rrd", "html": ".html"}
"""What a recording can be exported as, and how such a file's name ends."""


def export(
    path: Path, *, out: Path | None, form: str, episode: int | None = None, start: int = 0,
    actions: Path | None = None, **chosen: Any,
) -> tuple[Path, ...]:  # fmt: skip
    """Write one recording as a file; of a rollout every plan, each as a file of its own.

    Args:
      path: see `open_source`.
      out: the file; None is named after source and episode, in the present folder. Of several
        plans, each file's name ends in the plan's.
      form: one of `FORMATS`.
      episode: of a run or a data set: which episode; None takes the first.
      start: of a run: its first observed frame.
      actions: of a run: joint targets instead of the recorded ones.
      **chosen: see `open_source`.

    Returns:
      The files; each is printed when it is written, with what it shows.

    Raises:
      UserError: a package is missing, the source has no such episode or no use for something that
        was chosen, or the disk refuses.
    """
    if out is not None and out.suffix != FORMATS[form]:
        raise UserError(f"--out {out} should end in {FORMATS[form]} for --format {form}.")
    if form == "rerun":
        require("rerun", "rerun", "hdvpd export --format rerun")
        from hdvpd.viewing.rerun_file import write_rerun as write
    else:
        require("viser", "view", "hdvpd export --format html")
        from hdvpd.viewing.offline import write_page as write
    own = () if actions is None else (actions,)
    source = open_source(path, episode=episode, start=start, actions=own, **chosen)
    first = len(own)  # of a run, the one before has the recorded actions
    scenes = range(len(source.titles)) if isinstance(source, RolloutSource) else [first]
    if out is None:
        stem = f"{path.resolve().name}-episode-{source.episodes[first]:04d}"
        out = Path(stem + FORMATS[form])
    files = []
    for scene in scenes:
        plan = f"-{source.titles[scene]}" if len(scenes) > 1 else ""
        file = out.with_name(f"{out.stem}{plan}{out.suffix}")
        recording = source.load(scene)
        write(recording, file)
        print(f"wrote {file}: {recording.title}", flush=True)
        files.append(file)
    return tuple(files)
