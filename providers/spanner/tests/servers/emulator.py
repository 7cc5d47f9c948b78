"""Runs Google's own emulator of Cloud Spanner on a free port."""

import atexit
import fcntl
import itertools
import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import grpc
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner

from multiclouddb_conformance.waiting import wait_until
from multiclouddb_spanner_emulator.google import google_emulator as program

PROJECT, INSTANCE = "tests", "tests"
STILL = ("--enable_change_stream_churning=false",)
# Partitions live for three to six seconds. The emulator moves, splits and merges them by itself.
HASTY = (
    "--override_change_stream_partition_token_alive_seconds=3",
    "--change_stream_churn_thread_sleep_interval=1s",
    "--change_stream_churning_interval=1s",
)
COUNTER = itertools.count()
_HOST = "SPANNER_EMULATOR_HOST"
_READY_SECONDS = 60
_running = {}
_started = []  # kept, because Python warns of a process whose object is freed


def given():
    """Return the host and port of an emulator that is already running, or None if none was given.

    The tests assume that this emulator has its default settings.
    """
    return os.environ.get(_HOST)


def is_available(flags):
    """Return True if an emulator with these settings is available."""
    return program() is not None or (not flags and given() is not None)


class Emulator:
    """An emulator with one instance, and its native client."""

    def __init__(self, flags=(), host=None):
        self.process = None
        found = program()
        if host is not None or found is None:
            self.host = host or given()
            assert self.host, "no Cloud Spanner emulator: gcloud components install cloud-spanner-emulator"
        else:
            # The emulator chooses a free port, and says which.
            command = [found, "--host_port", "localhost:0", *flags]
            with tempfile.TemporaryFile() as said:
                self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
                wait_until(lambda: self.process.poll() is not None or _address(said), _READY_SECONDS)
                self.host = _address(said)
            assert self.host, f"the emulator ended with status {self.process.poll()}"
        with grpc.insecure_channel(self.host) as channel:
            grpc.channel_ready_future(channel).result(timeout=_READY_SECONDS)
        self.client = spanner.Client(
            project=PROJECT,
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": self.host},
            disable_builtin_metrics=True,
        )
        configuration = f"projects/{PROJECT}/instanceConfigs/emulator-config"
        self.instance = self.client.instance(INSTANCE, configuration_name=configuration, node_count=1)
        if not self.instance.exists():
            self.instance.create().result(_READY_SECONDS)

    @property
    def url(self):
        """Return the address that a client connects to."""
        return f"spanner://{PROJECT}/{INSTANCE}?emulator_host={self.host}"

    def database(self, *ddl, dialect=None):
        name = f"db-{os.getpid()}-{next(COUNTER)}"
        if dialect is None:
            made = self.instance.database(name, ddl_statements=ddl)
        else:
            made = self.instance.database(name, database_dialect=dialect)
        made.create().result(_READY_SECONDS)
        if dialect is not None:
            made.update_ddl(ddl).result(_READY_SECONDS)
        return made

    def stop(self):
        """Stop the emulator; all its data is lost."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _address(said):
    found = re.search(rb"Server address: (\S+)\n", os.pread(said.fileno(), 4096, 0))
    return found and found[1].decode()


@contextmanager
def run_folder():
    """Lock and provide the folder in which the workers of a test run find each other's emulators."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"alone-{os.getpid()}")
    folder = Path(tempfile.gettempdir(), f"multiclouddb-spanner-{run}")
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def shared(flags=STILL):
    """Return the emulator with these settings, which all tests of a run share."""
    if flags not in _running:
        with run_folder() as folder:
            mine = folder / "-".join(["emulator", *flags]).replace("/", "_")
            if mine.exists():
                _running[flags] = Emulator(flags, mine.read_text().split()[0])
            else:
                made = _running[flags] = Emulator(flags)
                _started.append(made)
                mine.write_text(f"{made.host} {0 if made.process is None else made.process.pid}")
            mine.with_name(f"user-{os.getpid()}-{mine.name}").touch()
    return _running[flags]


def stop():
    """End the shared emulators that no other worker uses."""
    if not _running:
        return
    _running.clear()
    with run_folder() as folder:
        for mine in folder.glob(f"user-{os.getpid()}-*"):
            mine.unlink()
        for emulator in folder.glob("emulator*"):
            if not list(folder.glob(f"user-*-{emulator.name}")):
                pid = int(emulator.read_text().split()[1])
                if pid:
                    os.kill(pid, signal.SIGKILL)
                emulator.unlink()
        if not list(folder.glob("emulator*")):
            shutil.rmtree(folder)


atexit.register(stop)
