"""Describes the stores to the tests of the conformance kit."""

import hashlib
import zlib

from multiclouddb_api import open_checkpoint_store
from multiclouddb_checkpoints import (
    AzureBlobCheckpointStore,
    DynamoCheckpointStore,
    GcsCheckpointStore,
    S3CheckpointStore,
)
from multiclouddb_conformance.checkpoint_stores import StoreKind

from .servers import PLACE

KEY = "orders.checkpoint.json"


def key(store):
    return store.place.removeprefix(f"{store.scheme}://").partition("/")[2] + f"/{KEY}"


# The bytes are read and written with the vendors' own calls, of the client that the store made.
def s3_put(store, content):
    store._client.put_object(Bucket=PLACE, Key=key(store), Body=content)


def s3_get(store):
    return store._client.get_object(Bucket=PLACE, Key=key(store))["Body"].read()


def gcs_put(store, content):
    store._client.bucket(PLACE).blob(key(store)).upload_from_string(content)


def gcs_get(store):
    return store._client.bucket(PLACE).blob(key(store)).download_as_bytes()


def azure_blob(store):
    return store._client.get_blob_client(key(store).partition("/")[2])


def dynamo_put(store, content):
    item = {"name": {"S": key(store)}, "version": {"S": "1"}, "checkpoint": {"B": zlib.compress(content)}}
    store._client.put_item(TableName=PLACE, Item=item)


def dynamo_get(store):
    found = store._client.get_item(TableName=PLACE, Key={"name": {"S": key(store)}})
    return zlib.decompress(found["Item"]["checkpoint"]["B"])


STORES = {
    "s3": (S3CheckpointStore, s3_put, s3_get),
    "gs": (GcsCheckpointStore, gcs_put, gcs_get),
    "azblob": (
        AzureBlobCheckpointStore,
        lambda store, content: azure_blob(store).upload_blob(content, overwrite=True),
        lambda store: azure_blob(store).download_blob().readall(),
    ),
    "dynamodb": (DynamoCheckpointStore, dynamo_put, dynamo_get),
}


def kind_of(service):
    made, put, get = STORES[service.scheme]
    return StoreKind(
        made,
        lambda folder: service.url(hashlib.sha256(str(folder).encode()).hexdigest()[:16]),
        lambda store: f"{store.place}/{KEY}",
        lambda store: store.delete("orders"),
        put,
        get,
    )


def opened(service, path="drill", **changes):
    return open_checkpoint_store(service.url(path, **changes))
