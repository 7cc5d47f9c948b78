"""Tests identities of Entra ID, whose tokens expire while a client is in use.

The service answers an expired token with 403/5300, after which azure-core keeps it, which is issue 45886 of
Azure/azure-sdk-for-python.
"""

import time

import pytest
from azure.core.credentials import AccessToken
from azure.cosmos import CosmosClient

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    MulticloudDbKey,
    Now,
    aio,
    connect,
)
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos.credentials import RenewableCredential
from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_cosmos_emulator.faults import Fail
from multiclouddb_spi import open_provider
from multiclouddb_spi.retry import Tries

from .harness import close_client
from .world import ADDRESS, READ, soon

pytestmark = [
    pytest.mark.usefixtures("hasty"),
    # For localhost, azure-cosmos does not verify a certificate, and urllib3 warns about this for each
    # request.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]


class Identity:
    """A credential whose tokens are numbered."""

    def __init__(self, *, renews=True, lifetime=3600):
        self.renews, self.lifetime, self.asked = renews, lifetime, 0

    def get_token(self, *scopes, **options):
        self.asked += 1
        number = self.asked if self.renews else 1
        return AccessToken(f"token-{number}", int(time.time()) + self.lifetime)


@pytest.fixture
def secured(make_world):
    world = make_world(2, server=CosmosEmulator(https=True))
    world.put("a", "b", "c")
    return world


def config_of(world, identity):
    url = world.config().connection["url"]
    return world.config().__class__("cosmos", {"url": url, "credential": identity})


@pytest.fixture
def entered(secured):
    """A client with an identity, which has read a page, and the token of that page."""
    identity = Identity()
    with connect(config_of(secured, identity)) as client:
        token = client.read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token
        yield client, identity, FromContinuationToken(token)


def keys(events):
    return sorted(event.key["id"] for event in events)


def test_a_token_is_asked_for_once(secured, entered):
    client, identity, place = entered
    for _ in range(3):
        client.read_changes(ChangeFeedRequest(ADDRESS, place))
    assert identity.asked == 1


class TestExpired:
    def test_a_feed_goes_on(self, secured, entered):
        client, identity, place = entered
        secured.put("d", "e", "f", "g")
        for number in (2, 3):
            secured.server.expire_tokens()
            seen = []
            for _ in range(4):
                page = client.read_changes(ChangeFeedRequest(ADDRESS, place))
                seen += page.events
                if page.idle:
                    break
                place = FromContinuationToken(page.continuation_token)
            assert not page.diagnostics.partition_errors
            assert keys(seen) == (["d", "e", "f", "g"] if number == 2 else [])
            assert identity.asked == number

    def test_the_service_answers_401(self, secured, entered):
        client, identity, place = entered
        secured.put("d")
        secured.server.faults.add(Fail(401), READ, times=1)
        assert keys(client.read_changes(ChangeFeedRequest(ADDRESS, place)).events) == ["d"]
        assert identity.asked == 2

    def test_look_ups_and_lists(self, secured, entered):
        client, identity, _ = entered
        key = MulticloudDbKey({"pk": "a", "id": "a"}, 1)
        calls = [
            lambda: client.lookup(ADDRESS, [key])[key].new_item_state["id"],
            lambda: client.collections("shop")[0].collection,
            lambda: len(client.list_physical_partitions(ADDRESS)),
            lambda: len(client.plan_partitions(ChangeFeedRequest(ADDRESS, Now()))),
        ]
        for number, (call, answer) in enumerate(zip(calls, ["a", "orders", 2, 2], strict=True), start=2):
            secured.server.expire_tokens()
            assert call() == answer
            assert identity.asked == number

    def test_scans(self, secured, entered):
        client, identity, _ = entered
        request = ChangeFeedRequest(
            ADDRESS, Beginning(), max_page_size=1, provider_options=CosmosOptions(backfill=True)
        )
        seen = []
        for event in client.iterate_changes(request, until_idle=True):
            seen.append(event)
            secured.server.expire_tokens()
        assert keys(seen) == ["a", "b", "c"]
        assert identity.asked > 2

    def test_a_client_that_asyncio_drives(self, secured):
        import asyncio

        async def read():
            identity = Identity()
            async with aio.connect(config_of(secured, identity)) as client:
                page = await client.read_changes(ChangeFeedRequest(ADDRESS, Now()))
                secured.put("d")
                secured.server.expire_tokens()
                place = FromContinuationToken(page.continuation_token)
                page = await client.read_changes(ChangeFeedRequest(ADDRESS, place))
                return keys(page.events), identity.asked

        assert asyncio.run(read()) == (["d"], 2)

    def test_what_spark_and_the_command_line_call(self, secured):
        from multiclouddb_spi import FeedSpec

        identity = Identity()
        provider = open_provider(config_of(secured, identity))
        try:
            tries = Tries(provider)
            feed = tries.call(lambda: provider.open_feed(FeedSpec(ADDRESS), soon()), soon())
            secured.server.expire_tokens()
            assert tries.call(lambda: feed.start(Now(), None, soon()), soon())
            assert identity.asked == 2
        finally:
            provider.close()

    def test_partitions_that_fail_together_renew_once(self, secured, entered):
        client, identity, place = entered
        secured.split("0")
        secured.split("1")
        secured.server.expire_tokens()
        page = client.read_changes(ChangeFeedRequest(ADDRESS, place))
        assert not page.diagnostics.partition_errors
        assert identity.asked == 2


class TestRefused:
    def refused(self, secured, client, place):
        with pytest.raises(MulticloudDbError) as caught:
            client.read_changes(ChangeFeedRequest(ADDRESS, place))
        assert not caught.value.retryable
        return caught.value

    def test_an_identity_without_the_role_costs_one_more_request(self, secured, entered):
        client, _, place = entered
        secured.server.faults.add(Fail(403, 5301), READ, times=None)
        before = secured.server.journal.count(READ)
        error = self.refused(secured, client, place)
        assert error.category == ErrorCategory.AUTHORIZATION_FAILED
        assert "grant the roles" in error.message
        assert secured.server.journal.count(READ) - before <= 4  # two partitions, twice each

    def test_the_same_token_again_is_not_sent_again(self, secured):
        identity = Identity(renews=False)
        with connect(config_of(secured, identity)) as client:
            token = client.read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token
            secured.server.expire_tokens()
            error = self.refused(secured, client, FromContinuationToken(token))
        assert error.category == ErrorCategory.AUTHENTICATION_FAILED
        assert "clock" in error.message
        assert "Provided AAD token has been expired since" in error.message

    def test_an_account_key_is_not_renewed(self, lone):
        client = lone.client()
        place = FromContinuationToken(
            client.read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token
        )
        lone.server.faults.add(Fail(403, 5300), READ, times=None)
        before = lone.server.journal.count(READ)
        self.refused(lone, client, place)
        assert lone.server.journal.count(READ) - before == 1

    def test_a_client_of_the_application_gets_the_way_out(self, secured):
        server = secured.server
        native = CosmosClient(server.endpoint, Identity(), enable_endpoint_discovery=False)
        try:
            with connect(secured.config(), native_client=native) as client:
                token = client.read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token
                server.expire_tokens()
                error = self.refused(secured, client, FromContinuationToken(token))
        finally:
            close_client(native)
        assert error.category == ErrorCategory.AUTHENTICATION_FAILED
        assert "make a new one" in error.message


class TestRenewableCredential:
    def test_a_token_is_replaced_before_it_expires(self):
        identity = Identity(lifetime=200)
        credential = RenewableCredential(identity)
        assert [credential.get_token("scope").token for _ in range(2)] == ["token-1", "token-2"]

    def test_only_the_first_of_several_failures_renews(self):
        identity = Identity()
        credential = RenewableCredential(identity)
        credential.get_token("scope")
        began = time.monotonic()
        assert credential.renew(began)
        assert credential.renew(began)
        assert identity.asked == 2

    def test_without_any_token_there_is_nothing_to_renew(self):
        assert not RenewableCredential(Identity()).renew(time.monotonic())

    def test_options_are_passed_on(self):
        asked = []

        class Told(Identity):
            def get_token(self, *scopes, **options):
                asked.append((scopes, options))
                return super().get_token()

        credential = RenewableCredential(Told())
        credential.get_token("scope")
        credential.get_token("scope", claims="more")
        assert asked == [(("scope",), {}), (("scope",), {"claims": "more"})]
