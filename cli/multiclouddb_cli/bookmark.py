"""Keeps a checkpoint in the one file that the user named."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from multiclouddb_api import Checkpoint, FileCheckpointStore

__all__ = ["Bookmark"]

_SUFFIX: Final = ".checkpoint.json"


class Bookmark(FileCheckpointStore):
    """A checkpoint store like `FileCheckpointStore`, for one file of any name.

    The store can also read and continue a file of an application's `FileCheckpointStore`.

    Args:
        file: The path of the file, which need not exist.
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
        """Save nothing from now on, because a later run has to continue from the saved position."""
        self.is_held = True

    def save(self, name: str, token: str, expected: str | None) -> Checkpoint:
        """Replace the checkpoint, unless `hold` was called."""
        if self.is_held:
            return Checkpoint(token, expected or "held")
        return super().save(name, token, expected)

    def load(self, name: str | None = None) -> Checkpoint | None:
        """Return the checkpoint, or None if its file does not exist."""
        return super().load(name or self.name)
