"""Makes environments with only the project's wheels and the packages of the extras that a page names.

Packages from registries are fetched once per user. The fetched packages are kept outside the clone, in a
folder named after their versions. In every run, the project's wheels are unpacked next to the fetched
packages.
"""

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROGRAM = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


class Wheels:
    """The project's wheels, by the name of their distribution."""

    def __init__(self, folder):
        self._files = {canonicalize_name(path.name.split("-")[0]): path for path in folder.glob("*.whl")}

    def unpack(self, name, folder):
        """Unpack a wheel into a folder of packages; map each of its commands to a module and a function."""
        with ZipFile(self._files[name]) as wheel:
            wheel.extractall(folder)
            (info,) = {path.split("/")[0] for path in wheel.namelist() if ".dist-info/" in path}
        points = ConfigParser()
        points.read(folder / info / "entry_points.txt")
        return dict(points["console_scripts"]) if points.has_section("console_scripts") else {}

    def needed(self, requirement):
        """Return what pip would install for a requirement: the project's distributions, and other
        packages.
        """
        ours, foreign, seen, left = set(), set(), set(), [Requirement(requirement)]
        while left:
            wanted = left.pop()
            name = canonicalize_name(wanted.name)
            if name not in self._files:
                foreign.add(str(wanted))
            elif (name, *sorted(wanted.extras)) not in seen:
                seen.add((name, *sorted(wanted.extras)))
                ours.add(name)
                left += chosen(self._requirements(name), wanted.extras)
        return ours, foreign

    def _requirements(self, name):
        with ZipFile(self._files[name]) as wheel:
            (file,) = [path for path in wheel.namelist() if path.endswith(".dist-info/METADATA")]
            text = wheel.read(file).decode()
        return re.findall(r"^Requires-Dist: (.*)$", text.partition("\n\n")[0], re.MULTILINE)


def chosen(requirements, extras):
    """Return the requirements that apply on this machine with these extras, without markers."""
    for each in map(Requirement, requirements):
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            each.marker = None
            yield each


def pins(foreign):
    """Return lines that pin these requirements and all their dependencies to the versions in `.venv`."""
    found, left = {}, [Requirement(each) for each in foreign]
    seen = set()
    while left:
        wanted = left.pop()
        mark = (canonicalize_name(wanted.name), *sorted(wanted.extras))
        if mark not in seen:
            seen.add(mark)
            distribution = metadata.distribution(wanted.name)
            found[mark[0]] = distribution.version
            left += chosen(distribution.requires or (), wanted.extras)
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def fetched(foreign):
    """Return a folder with these requirements, in the same versions as in `.venv`."""
    lines = pins(foreign)
    key = json.dumps([sys.version_info[:2], sys.platform, os.uname().machine, sorted(foreign), lines])
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "multiclouddb-tests")
    folder = root / hashlib.sha256(key.encode()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=root) as scratch:
                bounds = Path(scratch, "constraints.txt")
                bounds.write_text("\n".join(lines))
                pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
                pip.append("--no-compile")  # a program imports few of a thousand modules
                into = Path(scratch, "packages")
                command = [*pip, "--target", str(into), "-c", str(bounds), *sorted(foreign)]
                ran = subprocess.run(command, capture_output=True, text=True, check=False)
                assert ran.returncode == 0, ran.stderr
                into.rename(folder)
    return folder


def environment(wheels, requirement, folder):
    """Make an environment for a requirement; return the folder of its programs."""
    ours, foreign = wheels.needed(requirement)
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "fetched.pth").write_text(f"{fetched(foreign)}\n")
    for name in ours:
        for command, place in wheels.unpack(name, packages).items():
            module, _, function = place.partition(":")
            program = folder / "bin" / command
            program.write_text(PROGRAM.format(python=folder / "bin/python", module=module, function=function))
            program.chmod(0o755)
    return folder / "bin"
