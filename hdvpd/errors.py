"""The one exception that users see without a traceback, and a remedy that many share."""


class UserError(Exception):
    """A mistake its reader can fix.

    The message is one paragraph that names the file or key, the value found, what was expected
    and the remedy. The command line prints it and exits with status 2.
    """


def how_to_install(extra: str) -> str:
    """Say how the packages of an extra come in: hdvpd is on no package index, so from its clone."""
    return f"in the clone, run: pip install -c constraints.txt -e '.[{extra}]'"
