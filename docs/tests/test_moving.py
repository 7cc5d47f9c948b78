"""Tests the programs of "Moving from": the old and the new program print the output that the page shows."""

import sys
import zipfile

import pytest
from azure.cosmos import CosmosClient, PartitionKey

from multiclouddb_conformance.servers import cache_folder, download, fetch_once
from multiclouddb_cosmos_emulator import CosmosEmulator

from .page import Page, servers
from .test_cosmos import settle

BLOOP = "bloop==3.1.1"
DIGEST = "sha256:eeca3c343aa7b9404d60c8206d5a630adbe65c5f60ae0f9e6b6d46ca8fb7fe6b"
# Four changes, each a key and its status; None deletes the key.
WRITES = (("o-1", "new"), ("o-1", "paid"), ("o-2", "new"), ("o-1", None))


def page_of(name):
    return Page(f"moving/{name}.md")


def prints_the_same(page):
    said = page.said_behind("ours.py")
    assert len(said.splitlines()) == len(WRITES)
    assert page.run("theirs.py") == said
    assert page.run("ours.py") == said


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
    prints_the_same(page_of("boto3"))
    assert page_of("boto3").programs["ours.py"] == page_of("bloop").programs["ours.py"]
    monkeypatch.setenv("PYTHONPATH", str(bloop()))
    assert page_of("bloop").run("theirs.py") == page_of("bloop").said_behind("ours.py")


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
    page = page_of("pymongo")
    monkeypatch.chdir(tmp_path)
    with servers("mongo")("mongod").ReplicaSet(tmp_path / "servers") as replica_set:
        monkeypatch.setenv("MONGODB_URI", replica_set.uri())
        shop = replica_set.client()["shop"]
        orders = shop.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
        assert page.run("theirs.py") == ""
        position = (tmp_path / "resume-token.json").read_text()
        write_to(
            lambda key, status: orders.insert_one({"_id": key, "status": status}),
            lambda key, status: orders.update_one({"_id": key}, {"$set": {"status": status}}),
            lambda key: orders.delete_one({"_id": key}),
        )
        said = page.said_behind("ours.py")
        assert page.run("theirs.py") == said
        (tmp_path / "resume-token.json").write_text(position)
        assert page.run("ours.py") == said


def test_from_azure_cosmos(tmp_path, monkeypatch):
    page = page_of("azure-cosmos")
    monkeypatch.chdir(tmp_path)
    with CosmosEmulator() as server:
        monkeypatch.setenv("AZURE_COSMOS_KEY", server.key)
        account, host = "my-account.documents.azure.com", server.endpoint.split("/")[2]
        page.programs = {
            name: code.replace(f"https://{account}", server.endpoint).replace(
                f"cosmos://{account}", f"cosmos://{host}?tls=false"
            )
            for name, code in page.programs.items()
        }
        with CosmosClient(server.endpoint, server.key, enable_endpoint_discovery=False) as native:
            orders = native.create_database("shop").create_container("orders", PartitionKey("/id"))
            assert page.run("theirs.py") == page.run("ours.py") == ""
            write_to(
                lambda key, status: orders.create_item({"id": key, "status": status}),
                lambda key, status: orders.replace_item(key, {"id": key, "status": status}),
                lambda key: orders.delete_item(key, key),
            )
            prints_the_same(page)
            settle()
        settle()
