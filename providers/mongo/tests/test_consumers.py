"""Tests many consumers of one feed in one client: each of them keeps its own cursor."""

from multiclouddb_api import ChangeFeedRequest, ClientConfig, FromContinuationToken, Now

from .monitor import watched

PAGE = 5
ROUNDS = 4


class Consumers:
    """Several consumers at different positions. The consumers take turns; each reads one page per turn."""

    def __init__(self, client, address, collection, count):
        self._client, self._address = client, address
        start = client.read_changes(ChangeFeedRequest(address, Now())).continuation_token
        collection.insert_many([{"n": number} for number in range(7 * count + 2 * ROUNDS * PAGE)])
        self._tokens = [self._read(start, 7 * number + 1) for number in range(count)]

    def _read(self, token, size):
        request = ChangeFeedRequest(self._address, FromContinuationToken(token), max_page_size=size)
        page = self._client.read_changes(request)
        assert page.events
        return page.continuation_token

    def turns(self):
        for _ in range(ROUNDS):
            self._tokens = [self._read(token, PAGE) for token in self._tokens]


def test_no_consumer_opens_a_cursor_a_page(one, app, here, written):
    with watched(one.uri(appName=app)) as (client, commands):
        consumers = Consumers(client, here, written, 17)
        commands.clear()
        consumers.turns()
        assert len(commands.opening()) == 0
        assert commands.names("killCursors") == []


def test_no_more_cursors_are_kept_than_the_option_says(one, app, here, written):
    config = ClientConfig("mongo", {"url": one.uri(appName=app)}, max_readers_per_partition=2)
    with watched(config) as (client, commands):
        Consumers(client, here, written, 4).turns()
        assert len(commands.opening()) - len(commands.names("killCursors")) == 2
