"""The one exception that is shown to a user without a traceback."""


class UserError(Exception):
    """A mistake its reader can fix.

    The message is one paragraph that names the file or key, the value found, what was expected
    and the remedy. The command line prints it and exits with status 2.
    """
