"""Keeps a checkpoint in the file that the user specified."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from multiclouddb_api import Checkpoint, FileCheckpointStore

__all__ = ["Bookmark"]

_SUFFIX: Final = ".checkpoint.json"


class Bookmark(FileCheckpointStore):
    """A checkpoint store like `FileCheckpointStore`, but for one file with any name.

    The store can also read and update a file that an application's `FileCheckpointStore` has written.

    Args:
        file: The path of the file; the file need not exist yet.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(file.parent)
        self._file = file
        self.is_held = False
        self.name = file.name.removesuffix(_SUFFIX)

    def path(self, name: str) -> Path:
        """The path of the file.

        Raises:
            MulticloudDbError: Raised with `INVALID_REQUEST` for a name that a checkpoint cannot have.
        """
        super().path(name)
        return self._file

    def hold(self) -> None:
        """Save nothing after this call, because a later run has to continue from the saved position."""
        self.is_held = True

    def save(self, name: str, token: str, expected: str | None) -> Checkpoint:
        """Replace the checkpoint, unless `hold` was called."""
        if self.is_held:
            return Checkpoint(token, expected or "held")
        return super().save(name, token, expected)

    def load(self, name: str | None = None) -> Checkpoint | None:
        """Return the checkpoint, or None if its file does not exist."""
        return super().load(name or self.name)
