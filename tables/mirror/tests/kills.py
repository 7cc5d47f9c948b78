"""Kills a process before or after one of its steps."""


class Death(BaseException):
    """The process is killed."""


class Steps:
    """Counts the steps of a run, which dies at one of them.

    Attributes:
        steps: The number of moments so far: one before each step and one after it.
        kinds: The name of each step so far.
        dies_at: The moment of the death; None to live.
        failure: What is raised in place of the death.
    """

    def __init__(self):
        self.begin_steps()

    def begin_steps(self, dies_at=None, failure=None):
        self.steps, self.dies_at, self.failure = 0, dies_at, failure
        self.kinds = list[str]()

    def step(self):
        self.steps += 1
        if self.steps - 1 == self.dies_at:
            raise self.failure or Death

    @property
    def of_each_kind(self):
        """The moments after the first step of each kind, in the run so far."""
        return [2 * self.kinds.index(kind) + 1 for kind in dict.fromkeys(self.kinds)]

    def mortal(self, action, kind=None):
        """Return the action with a moment before it and one after it."""

        def run(*arguments, **named):
            self.kinds.append(kind or action.__name__)
            self.step()
            found = action(*arguments, **named)
            self.step()
            return found

        return run
