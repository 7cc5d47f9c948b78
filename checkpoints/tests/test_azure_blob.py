"""Tests that this store keeps the promises of every checkpoint store, also when its service fails."""

import gzip
import io
import time
import tracemalloc
from types import SimpleNamespace
from uuid import uuid4

import pytest
import requests
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.storage.blob import ContainerClient, ContentSettings
from urllib3 import HTTPResponse

from multiclouddb_api import ErrorCategory, MulticloudDbError, open_checkpoint_store
from multiclouddb_checkpoints import azure_blob as module
from multiclouddb_conformance.checkpoint_stores import (  # noqa: F401
    TestCompareAndSet,
    TestCrash,
    TestDamage,
    TestName,
    TestSaveAndLoad,
    refusal,
)

from .servers import ACCOUNT, AZURITE_KEY, PLACE
from .stores import azure_blob, opened
from .trouble import TestRenewal, TestTrouble  # noqa: F401

SCHEME = "azblob"


def test_a_lease_of_another_process_is_a_conflict(served):
    store = opened(served, f"leased-{uuid4().hex}")
    first = store.save("orders", "1", None)
    lease = azure_blob(store).acquire_lease(60)
    for call in (lambda: store.save("orders", "2", first.version), lambda: store.delete("orders")):
        error = refusal(call)
        assert error.category == ErrorCategory.CONFLICT
        assert "lease break" in error.message
    lease.release()
    assert store.save("orders", "2", first.version).token == "2"


def test_a_content_is_read_as_it_is_stored_and_up_to_the_bound(served, monkeypatch):
    """A library would make megabytes of a blob of kilobytes that says that it is compressed."""
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 16)
    store = opened(served, f"large-{uuid4().hex}")
    saved = store.save("orders", "1", None)
    assert store.load("orders") == saved
    for content, encoding in ((gzip.compress(bytes(64 << 20)), "gzip"), (bytes(1 << 20), None), (b"", None)):
        settings = ContentSettings(content_encoding=encoding)
        azure_blob(store).upload_blob(content, overwrite=True, content_settings=settings)
        with Peak() as peak:
            assert store._read(store._key("orders"))[0] == content[: (1 << 16) + 1]
        assert peak.nbytes < 32 << 20
        assert refusal(store.load, "orders").category == ErrorCategory.INVALID_REQUEST


@pytest.mark.parametrize("ignored", ["comp=blocklist", "nothing"])
def test_conditions_of_contents_that_are_sent_in_blocks_are_proved_too(served, monkeypatch, ignored):
    """Some servers compare tags in one of the two calls only."""
    size = 1 << 16
    monkeypatch.setattr(module.AzureBlobCheckpointStore, "large_from", size + 1)

    def forget(request):
        if ignored in request.http_request.url:
            for name in ("If-Match", "If-None-Match"):
                request.http_request.headers.pop(name, None)

    sizes = {"max_single_put_size": size, "max_block_size": size}
    account = {"account_name": ACCOUNT, "account_key": AZURITE_KEY}
    with ContainerClient(
        served.endpoint, PLACE, credential=account, raw_request_hook=forget, **sizes
    ) as client:
        store = module.AzureBlobCheckpointStore(served.url(f"blocks-{uuid4().hex}"), client=client)
        first = store.save("orders", "1", None)
        if ignored == "nothing":
            assert store.save("orders", "x" * (size + 9), first.version) == store.load("orders")
            return
        error = refusal(store.save, "orders", "x" * (size + 9), first.version)
        assert error.category == ErrorCategory.UNSUPPORTED_CAPABILITY
        assert store.load("orders") == first
        assert store.save("orders", "2", first.version).token == "2"


def test_a_blob_that_is_replaced_while_it_is_read_can_be_read_again(served):
    """The library reads more than 32 MiB in several calls."""
    path, size, asked = f"replaced-{uuid4().hex}", 1 << 16, []
    writer = opened(served, path)
    first = writer.save("orders", "x" * 3 * size, None)

    def replace(request):
        if request.http_request.method == "GET":
            asked.append(request)
            if len(asked) == 2:
                writer.save("orders", "y" * 3 * size, first.version)

    sizes = {"max_single_get_size": size, "max_chunk_get_size": size}
    account = {"account_name": ACCOUNT, "account_key": AZURITE_KEY}
    with ContainerClient(
        served.endpoint, PLACE, credential=account, raw_request_hook=replace, **sizes
    ) as client:
        store = module.AzureBlobCheckpointStore(served.url(path), client=client)
        error = refusal(store.load, "orders")
        assert (error.category, error.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)
        assert "others write at the same time" in error.message
        assert store.load("orders") == writer.load("orders")


@pytest.mark.parametrize(
    ("status", "category"),
    [
        (None, ErrorCategory.AUTHENTICATION_FAILED),
        (400, ErrorCategory.AUTHENTICATION_FAILED),
        (401, ErrorCategory.AUTHENTICATION_FAILED),
        (429, ErrorCategory.THROTTLED),
        (503, ErrorCategory.TRANSIENT_FAILURE),
    ],
)
def test_an_answer_of_the_identity_s_service_is_none_of_the_store(monkeypatch, status, category):
    """Entra ID answers 400 to a secret that is wrong or has expired, and azure-identity passes this on."""
    answer = (
        None if status is None else SimpleNamespace(status_code=status, reason="AADSTS7000222", headers={})
    )

    def refuse(self, key):
        raise ClientAuthenticationError("AADSTS7000222: the client secret has expired", response=answer)

    monkeypatch.setattr(module.AzureBlobCheckpointStore, "_read", refuse)
    store = open_checkpoint_store("azblob://account/container/x")
    assert refusal(store.load, "orders").category == category


class Peak:
    """Measures how many bytes of Python's objects exist at once."""

    nbytes = 0

    def __enter__(self):
        tracemalloc.start()
        return self

    def __exit__(self, *_):
        _, self.nbytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()


class Identity:
    """A credential whose tokens are numbered, or are always the same."""

    renews = True
    asked = 0

    def get_token(self, *scopes, **options):
        type(self).asked += 1
        return AccessToken(f"token-{self.asked if self.renews else 1}", int(time.time()) + 3600)


@pytest.mark.parametrize("renews", [True, False])
def test_a_token_that_has_expired_is_renewed_once(monkeypatch, renews):
    """The service answers 401 with a challenge, and its library then asks for a new token by itself."""
    sent = []
    challenge = (
        "Bearer authorization_uri=https://login.microsoftonline.com/tenant/oauth2/authorize "
        "resource_id=https://storage.azure.com"
    )

    def send(self, request, **options):
        sent.append(request.headers["Authorization"])
        answer = requests.Response()
        expired = sent[-1] == "Bearer token-1" and len(sent) > 1
        answer.status_code = 401 if expired else 404
        code = "InvalidAuthenticationInfo" if expired else "BlobNotFound"
        answer.headers.update(
            {"x-ms-error-code": code, **({"WWW-Authenticate": challenge} if expired else {})}
        )
        answer.raw = HTTPResponse(io.BytesIO(b""), answer.headers, answer.status_code, preload_content=False)
        answer.url, answer.request = request.url, request
        return answer

    monkeypatch.setattr("requests.adapters.HTTPAdapter.send", send)
    monkeypatch.setattr(Identity, "renews", renews)
    monkeypatch.setattr(Identity, "asked", 0)
    monkeypatch.setattr("azure.identity.DefaultAzureCredential", Identity)
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    store = open_checkpoint_store("azblob://account/container/x")
    assert store.load("orders") is None
    if renews:
        assert store.load("orders") is None
        assert store.load("orders") is None
        assert sent == [f"Bearer token-{number}" for number in (1, 1, 2, 2)]
    else:
        with pytest.raises(MulticloudDbError) as caught:
            store.load("orders")
        assert caught.value.category == ErrorCategory.AUTHENTICATION_FAILED
        # The load before; the refusal, and azure-core's own answer to it; the same with a new client.
        assert len(sent) == 5
    assert Identity.asked == (2 if renews else 4)
