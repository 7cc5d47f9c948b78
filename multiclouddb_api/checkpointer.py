"""Saves the position of an iterator in a checkpoint store."""

from __future__ import annotations

from multiclouddb_api.checkpoint import CheckpointStore
from multiclouddb_api.errors import ErrorCategory, MulticloudDbError
from multiclouddb_api.pacing import Timer

__all__ = ["Checkpointer"]


class Checkpointer:
    """Saves the tokens of pages that the caller has handled; if there is no store, nothing is saved.

    Args:
        store: The store for the tokens, or None to save nothing.
        name: The name of the checkpoint in the store.
        interval_seconds: The shortest time between two saves of the tokens of empty pages.
        timer: The iterator's clock.
    """

    def __init__(
        self, store: CheckpointStore | None, name: str, interval_seconds: float, timer: Timer
    ) -> None:
        self._store = store
        self._name = name
        self._interval = interval_seconds
        self._timer = timer
        self._version: str | None = None
        self._saved: str | None = None
        self._saved_at = timer.now()
        self._pending: str | None = None
        self._attempted: str | None = None

    def load(self) -> str | None:
        """Return the stored token to resume from, or None."""
        checkpoint = None if self._store is None else self._store.load(self._name)
        if checkpoint is None:
            return None
        self._version, self._saved = checkpoint.version, checkpoint.token
        return checkpoint.token

    def done(self, token: str, *, at_once: bool) -> None:
        """Record that the caller has handled everything up to the token.

        Args:
            token: The new position.
            at_once: True to save the token immediately, False if the save may wait until the interval has
                passed.
        """
        self._pending = None if token == self._saved else token
        # The first token is saved at once, because a start position such as `Now` is durable only as a token.
        if at_once or self._saved is None or self._timer.now() - self._saved_at >= self._interval:
            self.flush()

    def flush(self) -> None:
        """Save the last position if it has not been saved yet."""
        if self._store is None or self._pending is None:
            return
        token = self._pending
        self._settle(self._store)
        self._attempted = token
        try:
            checkpoint = self._store.save(self._name, token, self._version)
        except MulticloudDbError as error:
            if error.category == ErrorCategory.CONFLICT:
                self._attempted = None
            raise
        self._attempted = self._pending = None
        self._version, self._saved = checkpoint.version, token
        self._saved_at = self._timer.now()

    def _settle(self, store: CheckpointStore) -> None:
        """Find out whether a save succeeded although it raised an error."""
        if self._attempted is None:
            return
        checkpoint = store.load(self._name)
        if checkpoint is not None and checkpoint.token == self._attempted:
            self._version, self._saved = checkpoint.version, checkpoint.token
        self._attempted = None
