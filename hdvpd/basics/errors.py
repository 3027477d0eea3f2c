"""The one exception that users see without a traceback, and a remedy that many share."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake its reader can fix.

    The message is one paragraph that names the file or key, the value found, what was expected
    and the remedy. The command line prints it and exits with status 2.
    """


def how_to_install(extra: str = "") -> str:
    """Say how packages come in: hdvpd is on no package index, so from its clone.

    Args:
      extra: which packages; empty means those of the core.
    """
    what = f"'.[{extra}]'" if extra else "."
    return f"in the clone, run: pip install -c constraints.txt -e {what}"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the known name that a wrong one most probably meant, if any is near."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)), None)
