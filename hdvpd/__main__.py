"""The `hdvpd` command: its verbs are in `hdvpd.commands`, one frozen dataclass each."""

import gc
import os
import sys
from collections.abc import Sequence

import hdvpd
from hdvpd.basics.errors import UserError
from hdvpd.commands.base import Group, Program
from hdvpd.commands.compare import Compare
from hdvpd.commands.data import (
    AddRobot,
    Calibrate,
    Check,
    Import,
    Index,
    Inspect,
    Simulate,
    Synthetic,
)
from hdvpd.commands.demo import Demo
from hdvpd.commands.doctor import Doctor
from hdvpd.commands.evaluate import Evaluate
from hdvpd.commands.export import Export
from hdvpd.commands.flags import understood
from hdvpd.commands.model import Convert, Pack, Summary, Unpack
from hdvpd.commands.plan import PlanTask
from hdvpd.commands.rollout import Rollout
from hdvpd.commands.train import Train
from hdvpd.commands.view import View

MOVED = {
    "study": "the studies are commands of their own; in a clone, `python -m studies` lists them",
}
"""Verbs of earlier versions, and where their work is done now."""


def prepare(words: list[str]) -> list[str]:
    """Answer what is no verb, and put right what tyro would not understand.

    Raises:
      UserError: a verb or a flag is there no more.
    """
    if words[:1] == ["--version"]:
        print(f"hdvpd {hdvpd.__version__}")
        raise SystemExit(0)
    if words and words[0] in MOVED:
        if "--help" in words or "-h" in words:
            print(f"hdvpd: {MOVED[words[0]]}.")
            raise SystemExit(0)
        raise UserError(f"{MOVED[words[0]]}.")
    return understood(words)


HDVPD = Program(
    name="hdvpd",
    description=(
        "Learned 3-D particle world models from robot RGB-D video. `hdvpd VERB --help` lists the "
        "flags of a verb; --version shows the version, --debug the traceback of a mistake."
    ),
    commands={
        "data": Group(
            "Make, import, look at and check data sets.",
            {
                "simulate": Simulate,
                "synthetic": Synthetic,
                "import": Import,
                "inspect": Inspect,
                "index": Index,
                "check": Check,
                "robot": AddRobot,
                "calibrate": Calibrate,
            },
        ),
        "model": Group(
            "Look at a model before it is trained, pack a trained one, bring files up to date.",
            {"summary": Summary, "convert": Convert, "pack": Pack, "unpack": Unpack},
        ),
        "train": Train,
        "eval": Evaluate,
        "rollout": Rollout,
        "plan": PlanTask,
        "compare": Compare,
        "view": View,
        "export": Export,
        "demo": Demo,
        "doctor": Doctor,
    },
    prepare=prepare,
)


def main(args: Sequence[str] | None = None) -> int:
    """Run the `hdvpd` command.

    Args:
      args: words after `hdvpd`; by default those of the process.

    Returns:
      The exit status: 0 for success, 1 if a check failed, 2 for a mistake of the user.
    """
    # XLA alarms at a program that takes minutes to compile, and asks for a bug report: ours are
    # expected to, and the log says so. Errors reach Python as exceptions, whatever is logged.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Tracing makes many small objects that live: a fifth of its time went into looking through them
    # for garbage again and again.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    return HDVPD.run(sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    sys.exit(main())
