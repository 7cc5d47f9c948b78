"""PySpark of other versions: fetched once for a user, unpacked outside the clone, shared by all processes.

An environment is a folder that `PYTHONPATH` puts before the packages of `.venv`. Everything else that a
test needs comes from `.venv`. PySpark is a source package of about 430 MB. It is unpacked instead of built:
a build takes half a minute longer and gives the same files.

    python spark/tests/environments.py          builds all of them, and prints the time of each
"""

import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from multiclouddb_conformance.servers import download, fetch_once

DIGESTS = {
    "4.0.5": "a0d44b0e7faf0458ad83b7aa664e7ed8b96beed8a55d66ce3b0dfac2309dfca6",
    "4.1.4": "bcbd5e18690cf79d438e97210ad06fb8d451a251bb77becc2b0418868d2acd73",
    "4.2.1": "d79b7c8ee41e66a9202fe6f600ca90b931ca571ae9dbdf31c58d2672e5102da0",
}
SECONDS = 500.0
# Where setup.py puts the folders of the source package.
PLACES = {
    "pyspark": "pyspark",
    "deps/jars": "pyspark/jars",
    "deps/bin": "pyspark/bin",
    "deps/sbin": "pyspark/sbin",
}


def environment(version):
    """The folder with PySpark of a version; the first call of a user fetches it.

    Raises:
        ServerUnavailableError: pip failed, or what it brought is not what we know.
    """
    digest = DIGESTS[version]
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root, "multiclouddb-tests", digest[:16])
    return fetch_once(folder, lambda into: _bring(version, into), f"sha256:{digest}", _unpack)


def build_in_background():
    """Fetch what is missing while other tests run: a process that ends by itself, or None."""
    return subprocess.Popen([sys.executable, __file__], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _bring(version, into):
    package = ["--no-deps", "--no-binary=:all:", f"pyspark=={version}"]
    command = ["python", "-m", "pip", "download", "--quiet", *package]
    download(command, into, program=sys.executable, seconds=SECONDS)


def _unpack(package, scratch):
    with tarfile.open(package) as archive:
        members = []
        for member in archive:
            path = member.name.partition("/")[2]
            for begin, place in PLACES.items():
                if path.startswith(f"{begin}/"):
                    member.name = f"environment/{place}{path.removeprefix(begin)}"
                    members.append(member)
        archive.extractall(scratch, members, filter="data")
    return scratch / "environment"


if __name__ == "__main__":
    for wanted in DIGESTS:
        began = time.monotonic()
        found = environment(wanted)
        sys.stdout.write(f"{wanted} {found} {time.monotonic() - began:.1f} s\n")
