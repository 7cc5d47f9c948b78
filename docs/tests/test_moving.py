"""Tests that programs over other readers, in `moving/`, and those of the page print the same lines."""

import sys
import zipfile
from pathlib import Path

import pytest
from azure.cosmos import CosmosClient, PartitionKey

from multiclouddb_cosmos_emulator import CosmosEmulator
from testing.servers import cache_folder, download, fetch_once

from .page import Page, run_blocks, servers
from .test_cosmos import settle

BLOOP = "bloop==3.1.1"
DIGEST = "sha256:eeca3c343aa7b9404d60c8206d5a630adbe65c5f60ae0f9e6b6d46ca8fb7fe6b"
# Four changes, each a key and its status; None deletes the key.
WRITES = (("o-1", "new"), ("o-1", "paid"), ("o-2", "new"), ("o-1", None))


PAGE = Page("jobs/leave-another-reader.md")
SAID = PAGE.said_behind("ours.py")
PROGRAMS = Path(__file__).with_name("moving")


def theirs(name):
    """Return the program of another reader."""
    return (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")


def run(code, name="program.py"):
    (printed,) = run_blocks(name, [(0, name, code), (0, None, code)])
    return printed


@pytest.fixture
def orders(tmp_path, monkeypatch):
    """Provide a table whose stream rolls over between the writes."""
    modules = servers("dynamo")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name, value in modules("server").CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.chdir(tmp_path)
    with modules("local").LocalDynamo() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
        server.create_table("orders", partition_key="id")
        table = server.client()
        for number, (key, status) in enumerate(WRITES):
            if number == 2:
                server.rollover()
            if status is None:
                table.delete_item(TableName="orders", Key={"id": {"S": key}})
            else:
                table.put_item(TableName="orders", Item={"id": {"S": key}, "status": {"S": status}})
        yield


@pytest.mark.usefixtures("orders")
def test_from_boto3_and_from_bloop(monkeypatch):
    """bloop requires an older boto3 than the installed version, so bloop's wheel is fetched without
    dependencies.
    """
    assert run(theirs("boto3_loop")) == PAGE.run("ours.py") == SAID
    monkeypatch.setenv("PYTHONPATH", str(bloop()))
    assert run(theirs("bloop_stream")) == SAID


def bloop():
    """Return the folder with the package."""
    command = ["python", "-m", "pip", "download", "--quiet", "--no-deps", BLOOP]

    def unpack(wheel, scratch):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch)
        return scratch

    return fetch_once(
        cache_folder("bloop-3.1.1"),
        lambda into: download(command, into, program=sys.executable),
        DIGEST,
        unpack,
    )


def write_to(create, update, delete):
    """Make the changes of `WRITES` with the create, update and delete functions of a client."""
    there = set()
    for key, status in WRITES:
        if status is None:
            delete(key)
        else:
            (update if key in there else create)(key, status)
            there.add(key)


def test_from_pymongo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with servers("mongo")("mongod").ReplicaSet(tmp_path / "servers") as replica_set:
        monkeypatch.setenv("MONGODB_URI", replica_set.uri())
        shop = replica_set.client()["shop"]
        orders = shop.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
        assert run(theirs("pymongo_watch")) == ""
        position = (tmp_path / "resume-token.json").read_text()
        write_to(
            lambda key, status: orders.insert_one({"_id": key, "status": status}),
            lambda key, status: orders.update_one({"_id": key}, {"$set": {"status": status}}),
            lambda key: orders.delete_one({"_id": key}),
        )
        assert run(theirs("pymongo_watch")) == SAID
        (tmp_path / "resume-token.json").write_text(position)
        assert PAGE.run("mongo.py") == SAID


def test_from_azure_cosmos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with CosmosEmulator() as server:
        monkeypatch.setenv("AZURE_COSMOS_KEY", server.key)
        account, host = "my-account.documents.azure.com", server.endpoint.split("/")[2]
        before, after = (
            code.replace(f"https://{account}", server.endpoint).replace(
                f"cosmos://{account}", f"cosmos://{host}?tls=false"
            )
            for code in (theirs("azure_cosmos_feed"), PAGE.programs["cosmos.py"])
        )
        with CosmosClient(server.endpoint, server.key, enable_endpoint_discovery=False) as native:
            orders = native.create_database("shop").create_container("orders", PartitionKey("/id"))
            assert run(before) == run(after) == ""
            write_to(
                lambda key, status: orders.create_item({"id": key, "status": status}),
                lambda key, status: orders.replace_item(key, {"id": key, "status": status}),
                lambda key: orders.delete_item(key, key),
            )
            assert run(before) == run(after) == SAID
            settle()
        settle()
