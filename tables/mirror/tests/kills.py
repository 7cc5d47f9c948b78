"""Kills a process before or after one of its steps."""


class Death(BaseException):
    """The process is killed."""


class Steps:
    """Counts the steps of a run, which dies at one of them.

    Attributes:
        steps: The number of moments so far: one before each step and one after it.
        dies_at: The moment of the death; None to live.
        failure: What is raised in place of the death.
    """

    def __init__(self):
        self.begin_steps()

    def begin_steps(self, dies_at=None, failure=None):
        self.steps, self.dies_at, self.failure = 0, dies_at, failure

    def step(self):
        self.steps += 1
        if self.steps - 1 == self.dies_at:
            raise self.failure or Death

    def mortal(self, action):
        """Return the action with a moment before it and one after it."""

        def run(*arguments, **named):
            self.step()
            found = action(*arguments, **named)
            self.step()
            return found

        return run
