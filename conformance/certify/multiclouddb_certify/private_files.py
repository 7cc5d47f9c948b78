"""Writes what a run leaves: its files may contain names and values, so only their owner may read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

__all__ = ["make_private_folder", "open_private", "write_private"]


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner may open; one that exists keeps its mode.

    Args:
        folder: The folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(0o700, exist_ok=True)


def open_private(file: Path) -> IO[bytes]:
    """Open a file that only its owner may read, to write it anew.

    Args:
        file: The file.
    """
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.fchmod(handle, 0o600)  # it may have existed
    return os.fdopen(handle, "wb")


def write_private(file: Path, text: str) -> None:
    """Replace a file by one that only its owner may read; a kill leaves the old one or the new one.

    Args:
        file: The file.
        text: Its content.
    """
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    with open_private(new) as written:
        written.write(text.encode())
    new.replace(file)
