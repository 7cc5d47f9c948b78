"""Starts drivers of queries on several databases, waits for their progress, and kills them."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import attrs
import pyspark

from multiclouddb_api import ChangeFeedRequest, FromContinuationToken, Now, ResourceAddress, connect
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded import EmbeddedStore
from testing.provider_servers import server_module

from .environments import environment
from .jvm_settings import environment_of

EVENTS = 120
KEYS = 40
PARTS = 3


@attrs.define
class Feed:
    """A collection for a single test."""

    name: str
    url: str
    address: ResourceAddress
    write: object
    secrets: tuple = ()
    position: str = "beginning"
    token: object = None

    def mark(self):
        """Remember the current position of the feed."""
        with connect(self.url) as client:
            self.token = client.read_changes(ChangeFeedRequest(self.address, Now())).continuation_token

    def ids(self):
        """Return the ids of the events after the remembered position."""
        with connect(self.url) as client:
            request = ChangeFeedRequest(self.address, FromContinuationToken(self.token))
            return sorted(event.event_id for event in client.iterate_changes(request, until_idle=True))

    def options(self):
        database = {"database": self.address.database} if self.address.database else {}
        place = {"url": self.url, "collection": self.address.collection, **database}
        return {**place, "startingPosition": self.position}


def numbers_of(part):
    """Return the numbers of the events in a part, or of all events if the part is None."""
    size = EVENTS // PARTS
    return range(EVENTS) if part is None else range(part * size, (part + 1) * size)


class Embedded:
    """The embedded store uses files; its splits and merges are real."""

    def __init__(self, folder):
        self.folder = folder

    def feed(self, name):
        store = EmbeddedStore(self.folder / f"{name}.db", durable=False)
        with store:
            store.create_collection("items", partitions=3)

        def write(part=None):
            with EmbeddedStore(store.path, durable=False) as opened:
                for number in numbers_of(part):
                    opened.put("items", f"k{number % KEYS}", {"n": number})
                    parts = [part.partition_id for part in opened.partitions("items")]
                    if number == EVENTS // 3:
                        opened.split("items", parts[0])
                    if number == 2 * EVENTS // 3:
                        opened.merge("items", *parts[:2])

        return Feed("embedded", f"embedded://{store.path}", ResourceAddress(None, "items"), write)

    def close(self):
        pass


class Dynamo:
    def __init__(self, folder):
        del folder
        self.server = server_module("dynamo", "local").LocalDynamo()
        self.region = server_module("dynamo", "server").REGION

    def feed(self, name):
        self.server.create_table(name)

        def write(part=None):
            for number in numbers_of(part):
                item = {"pk": {"S": f"k{number % KEYS}"}, "n": {"N": str(number)}}
                self.server.client().put_item(TableName=name, Item=item)
                if number == EVENTS // 2:
                    self.server.rollover()

        url = f"dynamo://{self.region}?endpoint_url={self.server.endpoint_url}"
        secret = credentials()["AWS_SECRET_ACCESS_KEY"]
        return Feed("dynamo", url, ResourceAddress(None, name), write, (secret,))

    def close(self):
        self.server.close()


class Mongo:
    """A MongoDB replica set that requires a password."""

    def __init__(self, folder):
        module = server_module("mongo", "mongod")
        self.server = module.ReplicaSet(folder / "mongo", auth=True)
        self.secrets = (module.PASSWORD, quote(module.PASSWORD, safe=""))

    def feed(self, name):
        items = self.server.client()["shop"][name]
        items.database.create_collection(name)

        def write(part=None):
            for number in numbers_of(part):
                if number < EVENTS - 20:
                    items.insert_one({"_id": number, "n": number})
                elif number < EVENTS - 10:
                    items.update_one({"_id": number - 40}, {"$set": {"n": -1}})
                else:
                    items.delete_one({"_id": number - 40})

        assert self.secrets[1] in self.server.uri()
        return Feed("mongo", self.server.uri(), ResourceAddress("shop", name), write, self.secrets)

    def close(self):
        self.server.close()


class Cosmos:
    """The project's Cosmos DB emulator, with a partition that splits."""

    def __init__(self, folder):
        from multiclouddb_cosmos_emulator import CosmosEmulator

        del folder
        self.server = CosmosEmulator()
        self.server.__enter__()
        self.natives = []

    def feed(self, name):
        from azure.cosmos import CosmosClient, PartitionKey

        native = CosmosClient(self.server.endpoint, self.server.key, enable_endpoint_discovery=False)
        self.natives.append(native)
        database = native.create_database_if_not_exists("shop")
        items = database.create_container(name, PartitionKey("/id"), offer_throughput=12_000)

        def write(part=None):
            for number in numbers_of(part):
                items.upsert_item({"id": f"k{number % KEYS}", "n": number})
                if number == EVENTS // 2:
                    (first, *_) = self.server.partitions("shop", name)
                    self.server.split("shop", name, first["id"])

        url = f"cosmos://{self.server.endpoint.split('/')[2]}?tls=false"
        # The service does not report changes that were made before the query's first batch.
        return Feed("cosmos", url, ResourceAddress("shop", name), write, (self.server.key,), "now")

    def close(self):
        for native in self.natives:
            native.close()
        self.server.__exit__(None, None, None)


def credentials():
    return server_module("dynamo", "server").CREDENTIALS


PROGRAM = Path(__file__).with_name("driver.py")
SECONDS = 400
LIMIT = 20


def start_driver(part, folder, log, version=pyspark.__version__, path=(), **given):
    """Start a driver on a version of Spark, in a session of its own."""
    (folder / "given").write_text(json.dumps(given))
    variables, folders = {}, [*path, *filter(None, [os.environ.get("PYTHONPATH")])]
    if version != pyspark.__version__:
        variables, folders = environment_of(environment(version)), [environment(version), *folders]
    with log.open("a") as out:
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), part, str(folder)],
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(map(str, folders))},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


class Queries:
    """Runs one query for each of several feeds in one driver."""

    def __init__(self, folder, feeds, master="local[4,2]", version=pyspark.__version__):
        self.folder, self.feeds, self.master, self.version = folder, feeds, master, version
        folder.mkdir()
        self.process = None
        for feed in feeds:
            feed.mark()

    def start(self, moment="none", names=None, followed=None):
        self.moment = moment
        self.running = [feed for feed in self.feeds if names is None or feed.name in names]
        given = {feed.name: {**feed.options(), "maxRecordsPerTrigger": str(LIMIT)} for feed in self.running}
        if followed is not None:
            given["followed"] = followed
        for name in ("go", "jvm"):  # of the driver before this one
            (self.folder / name).unlink(missing_ok=True)
        self.log = self.folder / f"log-{moment}"
        options = {"queries": given, "master": self.master, "events": EVENTS, "moment": moment}
        self.process = start_driver("queries", self.folder, self.log, self.version, **options)

    def write(self, part=None, names=None):
        self.wait(lambda place: (place / "checkpoint" / "commits" / "0").exists())
        for feed in self.running:
            if names is None or feed.name in names:
                feed.write(part)

    def places(self):
        return [self.folder / feed.name for feed in self.running]

    def wait(self, condition, places=None):
        """Wait until a condition holds in the folder of each query that was started, or in other folders."""

        def holds():
            assert self.process.poll() is None, self.log.read_text()[-5000:]
            return all(condition(place) for place in places or self.places())

        wait_until(holds, seconds=SECONDS)

    def reach(self):
        """Wait until every query has stopped at the given moment."""
        self.wait(lambda place: (place / f"reached-{self.moment}").exists())
        return [int((place / f"reached-{self.moment}").read_text() or 0) for place in self.places()]

    def kill(self):
        """Kill the driver and its JVM."""
        jvm = int((self.folder / "jvm").read_text())
        os.kill(jvm, signal.SIGSTOP)
        if self.moment == "commit":
            # Each sink returns, but Spark's JVM is stopped and does not notice.
            (self.folder / "go").touch()
            self.wait(lambda place: int((place / "returned").read_text()) == max(marks(place, "offsets")))
        os.kill(self.process.pid, signal.SIGSTOP)
        for pid in (jvm, self.process.pid):
            os.kill(pid, signal.SIGKILL)
        end(self.process)

    def wait_for_more(self, than):
        self.wait(lambda place: len(rows_of(place)) > than)

    def end(self):
        assert self.process.wait(SECONDS) == 0, self.log.read_text()[-5000:]

    def check(self):
        """Check that each event was delivered once, and that repeated batches are correct."""
        for feed, place in zip(self.feeds, self.places(), strict=True):
            rows = rows_of(place)
            assert sorted(rows) == feed.ids()
            assert len(rows) == EVENTS
            came = {}
            for file in (place / "deliveries").iterdir():
                came.setdefault(file.name.partition("-")[0], []).append(json.loads(file.read_text()))
            assert all(again == first for first, *rest in came.values() for again in rest)
            assert max(len(first) for first, *_ in came.values()) <= LIMIT


def end(process):
    """Kill a program and every process that it has started; all of them run in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def rows_of(place):
    return [row for file in (place / "rows").iterdir() for row in json.loads(file.read_text())]


def marks(place, kind):
    return {int(path.name) for path in (place / "checkpoint" / kind).iterdir() if path.name.isdigit()}
