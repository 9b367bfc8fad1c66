"""The one exception that users see: what is required, what was given, how to mend it."""


class UserError(Exception):
    """Something the user can mend. Shown as one line, never as a traceback.

    Args:
        problem: what is wrong or required, e.g. "no config.json".
        given: the value that was given.
        fix: what to do about it.
    """

    exit_code = 1

    def __init__(self, problem: str, *, given: object = None, fix: str | None = None):
        self.problem, self.given, self.fix = problem, given, fix
        super().__init__(str(self))

    def __str__(self) -> str:
        text = self.problem if self.given is None else f"{self.problem} (given: {self.given})"
        text = text if self.fix is None else f"{text}; {self.fix}"
        return " ".join(text.split())


class MisuseError(UserError):
    """The call itself is off: an option or argument that can never work."""

    exit_code = 2
