"""Tries what readers of the change feed reported to public trackers. Each test names its report."""

import itertools
from datetime import timedelta, timezone

import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    Fail,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    Now,
    SkipToOldest,
    Snapshot,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos import client as client_room
from multiclouddb_cosmos.transport import Adapter, Headers
from multiclouddb_cosmos_emulator import faults, service
from multiclouddb_cosmos_emulator.errors import bad_request
from multiclouddb_cosmos_emulator.reading import Reach, page_size

from .test_keys import drained
from .world import ADDRESS, READ, World

pytestmark = pytest.mark.usefixtures("hasty")
LATEST, BACKFILL = CosmosOptions(mode="latest"), CosmosOptions(backfill=True)
BOTH = pytest.mark.parametrize("options", [LATEST, BACKFILL], ids=["latest", "backfill"])


def everything(world, start=None, options=LATEST, **request):
    request = ChangeFeedRequest(ADDRESS, start or Beginning(), provider_options=options, **request)
    return list(world.client().iterate_changes(request, until_idle=True))


def ids(events):
    return sorted(event.key["id"] for event in events)


@BOTH
@pytest.mark.parametrize("zeros", [0, 32, 64])
def test_a_boundary_between_partitions_may_end_in_zeros(make_world, options, zeros):
    """Azure/azure-cosmos-dotnet-v3 issues 5159, 5577 and 5859: prefixes of a key found nothing."""
    world = make_world(1, key=["/tenant", "/user", "/session"])
    wanted = {}
    for number in range(30):
        item = {"id": f"i{number:02}", "tenant": f"t{number % 3}", "user": number % 2, "session": number}
        world.container.upsert_item(item)
        wanted.setdefault(item["tenant"], []).append(item["id"])
    for tenant in ("t0", "t1"):
        border = world.server.effective_key(tenant, 0, 0, kind="MultiHash")[:32] + "0" * zeros
        (holder,) = [each["id"] for each in world.partitions() if each["low"] < border < each["high"]]
        world.split(holder, boundary=border)
    for tenant, expected in wanted.items():
        scope = LogicalPartition(MulticloudDbKey({"tenant": tenant}))
        assert ids(everything(world, options=options, scope=scope, max_page_size=3)) == expected
        whole = LogicalPartition(MulticloudDbKey({"tenant": tenant, "user": 1}))
        assert ids(everything(world, options=options, scope=whole)) == [
            each for each in expected if int(each[1:]) % 2
        ]


@BOTH
def test_a_prefix_that_spans_several_partitions_ends_and_goes_on(make_world, options):
    """Azure/azure-cosmos-dotnet-v3 issue 3865: the iterator got stuck. Azure/azure-sdk-for-java issue 35223,
    Azure/azure-sdk-for-rust PR 4729: the prefix was refused, or returned the whole partition.
    """
    world = make_world(1, key=["/tenant", "/user"])
    for number in range(40):
        world.container.upsert_item({"id": f"i{number:02}", "tenant": f"t{number % 2}", "user": str(number)})
    scope = LogicalPartition(MulticloudDbKey({"tenant": "t1"}))
    consumer = world.consumer(Beginning(), scope=scope, provider_options=options, max_page_size=4)
    consumer.read()
    first = world.server.effective_key("t1", "1", kind="MultiHash")
    (holder,) = [each["id"] for each in world.partitions() if each["low"] < first < each["high"]]
    world.split(holder, boundary=first[:32] + "1F")
    consumer.restart()
    drained(consumer)
    assert ids(consumer.events) == [f"i{number:02}" for number in range(1, 40, 2)]


@BOTH
@pytest.mark.parametrize("plain", [True, False], ids=["point_read", "query"])
def test_an_item_may_lack_levels_of_a_hierarchical_key(make_world, put_text, options, plain):
    """Azure/cosmos-explorer PR 2085: such an item was listed and could not be loaded."""
    world = make_world(2, key=["/a", "/b", "/c/d"])
    parts = {"a": '"a": "1"', "b": '"b": null', "c": '"c": {"d": 2}'}
    number = 0
    for count in range(4):
        for chosen in itertools.combinations(parts, count):
            number += 1
            body = ", ".join([f'"id": "i{number}{"" if plain else "#"}"', *(parts[each] for each in chosen)])
            put_text(world, f"{{{body}}}")
    keys = [event.key for event in everything(world, options=options)]
    assert len(keys) == number
    assert sorted(len(key.components) for key in keys) == [1, 2, 2, 2, 3, 3, 3, 4]
    rows = world.client().lookup(ADDRESS, keys, provider_options=options)
    assert {asked: row.key for asked, row in rows.items()} == {key: key for key in keys}
    other = MulticloudDbKey({"a": "2", "id": keys[0]["id"]}, 1)
    assert world.client().lookup(ADDRESS, [other], provider_options=options) == {other: None}


@pytest.mark.parametrize("options", [LATEST, None], ids=["latest", "all_versions"])
def test_children_keep_their_own_positions(lone, options):
    """Azure/azure-sdk-for-java PR 50031: one position for all children of a split lost changes; PR 22718: the
    children began again at the beginning.
    """
    consumer = lone.consumer(Now(), provider_options=options, max_page_size=1)
    consumer.read()
    written = lone.fill(8)
    consumer.read()
    consumer.read()
    lone.split()
    written += lone.fill(8)
    for _ in range(60):
        page = consumer.read()
        consumer.restart()
        if page.idle:
            break
    assert sorted(consumer.markers) == written


def test_every_partition_is_read(make_world):
    """Azure/azure-sdk-for-python issue 34922: after the first partition, the feed stopped."""
    world = make_world(4)
    written = world.fill(40)
    assert sorted(event.new_item_state["n"] for event in everything(world)) == written


@BOTH
def test_every_page_of_one_key_has_this_key_only(lone, options):
    """Azure/azure-cosmos-dotnet-v3 PR 1790: after the first page, other keys of the partition followed."""
    for number in range(20):
        lone.container.upsert_item({"id": f"i{number:02}", "pk": f"p{number % 2}"})
    scope = LogicalPartition(MulticloudDbKey({"pk": "p1"}))
    found = everything(lone, options=options, scope=scope, max_page_size=1)
    assert ids(found) == [f"i{number:02}" for number in range(1, 20, 2)]


def test_the_first_change_after_now_is_delivered(make_world):
    """Azure/azure-cosmos-dotnet-v3 issue 5268: it was skipped unless a time was given."""
    for options in (None, LATEST):
        world = make_world(2)
        consumer = world.consumer(Now(), provider_options=options)
        consumer.read()
        world.put("first")
        assert ids(drained(consumer)) == ["first"]


@pytest.mark.parametrize("hours", [-11, 0, 5.5, 14])
def test_a_time_may_have_any_offset(world, hours):
    """Azure/azure-cosmos-dotnet-v3 issues 3559 and 3661: a local time found nothing."""
    world.put("early")
    world.server.advance(30)
    moment = world.server.clock.now()
    world.put("late")
    start = AtTime(moment.astimezone(timezone(timedelta(hours=hours))))
    assert ids(everything(world, start)) == ids(everything(world, start, BACKFILL)) == ["late"]


def test_a_token_never_runs_ahead_of_what_was_delivered(lone):
    """microsoft/kafka-connect-cosmosdb issues 70 and 166, Azure/azure-cosmos-dotnet-v3 issue 4342."""
    written = lone.fill(25)
    request = {"provider_options": LATEST, "max_page_size": 3}
    consumer = lone.consumer(Beginning(), **request)
    tokens = [consumer.read().continuation_token for _ in range(9)]
    for count, token in enumerate(tokens, 1):
        again = lone.consumer(FromContinuationToken(token), **request)
        assert [event.new_item_state["n"] for event in drained(again)] == written[3 * count :]


# -- Records that cannot be decoded, also as the first of a feed or a scan


def without_lsn(item):
    """Return the item of either feed without its place; its order key would be a guess."""
    found = {name: value for name, value in item.items() if name != "_lsn"}
    if "metadata" in found:
        found["metadata"] = {name: value for name, value in item["metadata"].items() if name != "lsn"}
    return found


POISON = {
    "null": lambda item: None,
    "a number": lambda item: 5,
    "nothing": lambda item: {},
    "a document without its parts": lambda item: {"current": {}},
    "no LSN": lambda item: without_lsn(item),
    "a text as LSN": lambda item: {**without_lsn(item), "_lsn": "7"},
    "an id that is no text": lambda item: {**item, "id": 5, "current": {**item.get("current", {}), "id": 5}},
}


@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize(
    ("start", "options"),
    [
        (Beginning(), LATEST),
        (AtTime, LATEST),
        (Beginning(), BACKFILL),
        (AtTime, BACKFILL),
        (Snapshot(), None),
    ],
    ids=["latest", "latest at a time", "backfill", "backfill at a time", "snapshot"],
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_poison_has_a_token_that_skips_it_wherever_it_is(lone, monkeypatch, poison, start, options, at):
    """Azure/azure-cosmos-db-emulator-docker issue 334: items of all versions are null."""
    lone.put(*"aaaaaabbbbbbcccccc")  # most LSNs have no item any more
    parsed = client_room._parsed

    def damaged(text):
        body = parsed(text)
        for index, item in enumerate(body["Documents"]):
            if item.get("id") == "abc"[at]:
                body["Documents"][index] = POISON[poison](item)
        return body

    monkeypatch.setattr(client_room, "_parsed", damaged)
    if start is AtTime:
        start = AtTime(lone.server.clock.now() - timedelta(hours=1))
    found, skips = [], []
    for _ in itertools.repeat(None, 12):
        try:
            page = lone.client().read_changes(
                ChangeFeedRequest(ADDRESS, start, provider_options=options, max_page_size=1)
            )
        except MulticloudDbError as error:
            start = FromContinuationToken(error.detail.skip_token)
            skips.append(error.category)
            continue
        found += page.events
        start = FromContinuationToken(page.continuation_token)
        if page.idle:
            break
    assert skips == [ErrorCategory.PROVIDER_ERROR]
    assert ids(found) == [each for each in "abc" if each != "abc"[at]]


@pytest.mark.parametrize("poison", POISON)
def test_poison_may_be_the_first_change_after_now(lone, monkeypatch, poison):
    consumer = lone.consumer()
    lone.put("a", "b")
    parsed = client_room._parsed

    def damaged(text):
        body = parsed(text)
        for index, item in enumerate(body["Documents"]):
            if item["current"]["id"] == "a":
                body["Documents"][index] = POISON[poison](item)
        return body

    monkeypatch.setattr(client_room, "_parsed", damaged)
    with pytest.raises(MulticloudDbError) as caught:
        drained(consumer)
    consumer.start = FromContinuationToken(caught.value.detail.skip_token)
    assert ids(drained(consumer)) == ["b"]


@pytest.mark.parametrize(
    "optional",
    [
        {"current": None, "previous": None},
        {"previous": {}},
        {"current": {"id": "other"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("missing", ["previousImageLSN", "timeToLiveExpired", None])
def test_fields_of_a_delete_that_may_be_missing(lone, monkeypatch, optional, missing):
    """Azure/azure-cosmos-dotnet-v3 issue 4933, MicrosoftDocs/azure-databases-docs PR 276."""
    lone.put("a")
    consumer = lone.consumer()
    lone.container.delete_item("a", "a")
    parsed = client_room._parsed

    def told(text):
        body = parsed(text)
        for item in body["Documents"]:
            item.update(optional)
            item["metadata"].pop(missing, None)
            if missing is None:
                item["metadata"].update(previousImageLSN=None, timeToLiveExpired=None)
        return body

    monkeypatch.setattr(client_room, "_parsed", told)
    (event,) = drained(consumer)
    assert (event.key["id"], event.key["pk"], event.by_expiry) == ("a", "a", False)
    assert event.new_item_state is None


@pytest.mark.parametrize("known", [{"id": "a"}, {}, {"partitionKey": {"pk": "a"}}], ids=str)
def test_a_delete_may_tell_its_key_in_its_previous_version(lone, monkeypatch, known):
    """Azure/azure-cosmos-dotnet-v3 issue 4933: metadata without `id` and `partitionKey`."""
    lone.put("a")
    consumer = lone.consumer()
    lone.container.delete_item("a", "a")
    parsed = client_room._parsed

    def told(text):
        body = parsed(text)
        for item in body["Documents"]:
            for name in ("id", "partitionKey"):
                if name not in known:
                    del item["metadata"][name]
            item["previous"] = {"id": "a", "pk": "a"}
        return body

    monkeypatch.setattr(client_room, "_parsed", told)
    (event,) = drained(consumer)
    assert (event.key["id"], event.key["pk"]) == ("a", "a")


NESTED, LEVELS = {"id": "a", "address": {"zip": "1"}}, {"id": "a", "t": "1", "u": "2"}


@pytest.mark.parametrize(
    ("path", "item", "told", "key"),
    [
        ("/address/zip", NESTED, {"zip": "1"}, {"address/zip": "1"}),
        ("/address/zip", NESTED, {"address/zip": "1"}, {"address/zip": "1"}),
        ("/address/zip", NESTED, {"/address/zip": "1"}, {"address/zip": "1"}),
        ("/address/zip", NESTED, {"address": {"zip": "1"}}, {"address/zip": "1"}),
        ("/address/zip", NESTED, {"address": {"Zip": "1"}}, None),
        ("/address/zip", NESTED, {}, {}),
        ("/address/zip", NESTED, {"address.zip": "1"}, None),
        ("/address/zip", NESTED, ["1"], None),
        ("/address/zip", NESTED, "1", None),
        (["/t", "/u"], LEVELS, {"t": "1"}, {"t": "1"}),
        (["/t", "/u"], LEVELS, {"t": "1", "U": "2"}, None),
        (["/t", "/u"], LEVELS, ["1", "2"], None),
        (["/t", "/u"], LEVELS, {"t": "1", "u": "2", "new": True}, {"t": "1", "u": "2"}),
    ],
    ids=str,
)
def test_a_delete_whose_key_is_told_in_another_form_is_not_one_of_another_item(
    monkeypatch, path, item, told, key
):
    """The service has changed the form of a delete before: Azure/azure-sdk-for-java PR 43881."""
    with World(key=path) as world:
        world.container.upsert_item(item)
        consumer = world.consumer()
        world.container.delete_item("a", "1" if item is NESTED else ["1", "2"])
        parsed = client_room._parsed

        def other(text):
            body = parsed(text)
            for each in body["Documents"]:
                each["metadata"]["partitionKey"] = told
            return body

        monkeypatch.setattr(client_room, "_parsed", other)
        if key is not None:
            assert [event.key.components for event in drained(consumer)] == [key | {"id": "a"}]
            return
        with pytest.raises(MulticloudDbError, match="UnknownKey") as caught:
            drained(consumer)
        consumer.start = FromContinuationToken(caught.value.detail.skip_token)
        assert drained(consumer) == []


@pytest.mark.parametrize(
    ("flag", "by_expiry"),
    [(True, True), (False, False), (None, False), ("true", None), ("True", None), (1, None)],
    ids=repr,
)
def test_an_expiry_is_known_only_if_the_flag_is_one(lone, monkeypatch, flag, by_expiry):
    """Microsoft's page on the modes of the change feed says `'true'`, with quotes."""
    lone.put("a")
    consumer = lone.consumer()
    lone.container.delete_item("a", "a")
    parsed = client_room._parsed

    def told(text):
        body = parsed(text)
        for item in body["Documents"]:
            item["metadata"]["timeToLiveExpired"] = flag
        return body

    monkeypatch.setattr(client_room, "_parsed", told)
    (event,) = drained(consumer)
    assert event.by_expiry is by_expiry


@pytest.mark.parametrize(
    "answer",
    [
        lambda item: {**item["current"], "_lsn": item["metadata"]["lsn"]},
        lambda item: {"current": None, "previous": None, "metadata": None},
        lambda _: None,
        lambda item: item | {"metadata": item["metadata"] | {"operationType": "upsert"}},
    ],
    ids=["latest versions", "empty envelopes", "null", "another type"],
)
def test_a_server_without_the_feed_of_all_versions_is_told(lone, monkeypatch, answer):
    """Azure/azure-cosmos-db-emulator-docker issue 334: an emulator that does not know the mode."""
    consumer = lone.consumer()
    lone.put("a")
    parsed = client_room._parsed

    def told(text):
        body = parsed(text)
        body["Documents"] = list(map(answer, body["Documents"]))
        return body

    monkeypatch.setattr(client_room, "_parsed", told)
    with pytest.raises(MulticloudDbError, match="cannot be decoded") as caught:
        drained(consumer)
    assert caught.value.category is ErrorCategory.PROVIDER_ERROR
    assert caught.value.detail.skip_token


SMALLER = (
    "The page size is too big to preserve items that belong to same transaction. Reduce page size and try "
    "again."
)


class Strict:
    """A service that returns a page with a large transaction only if few items are asked for."""

    def __init__(self, monkeypatch, most=10, text=SMALLER):
        self.most, self.text, self.lsn, self.refused, self.asked = most, text, 0, 0, []
        self._answer = service._CALLS[READ]
        monkeypatch.setattr(service, "_CALLS", {**service._CALLS, READ: self._read})

    def _read(self, call):
        tag, size = (call.request.headers.get("if-none-match") or "").strip('"'), page_size(call.request)
        after = int(tag) if tag.isdigit() else None if tag else 0
        if self.lsn and size > self.most and after is not None and after < self.lsn:
            (part,) = Reach.of(call.request, call.container()).partitions
            if sum(change.lsn < self.lsn for change in part.after(after)) < size:
                self.refused += 1
                raise bad_request(self.text)
        self.asked.append(size)
        return self._answer(call)

    def fill(self, world):
        """Write items before, in and after the transaction."""
        world.fill(20)
        world.batch("b", *[("upsert", ({"id": f"b{number}", "pk": "b"},)) for number in range(60)])
        self.lsn = world.partitions()[0]["lsn"]
        world.fill(20)


class TestAPageThatIsTooLarge:
    """Azure/azure-documentdb-changefeedprocessor-dotnet issue 23: the service asks for less."""

    @pytest.mark.parametrize("mode", ["all_versions", "latest"])
    @pytest.mark.parametrize("on_expired", [Fail(), SkipToOldest()], ids=["fail", "skip"])
    def test_smaller_pages_are_read_until_the_transaction_is_over(self, lone, monkeypatch, mode, on_expired):
        strict, options = Strict(monkeypatch), CosmosOptions(mode=mode)
        token = lone.client().read_changes(ChangeFeedRequest(ADDRESS, Now(), provider_options=options))
        strict.fill(lone)
        start = FromContinuationToken(token.continuation_token)
        found = everything(lone, start, options, on_expired=on_expired)
        assert len(set(ids(found))) == len(found) == 100
        assert 0 < strict.refused < 20
        assert strict.asked[-1] > strict.most  # it asks for more again

    @pytest.mark.parametrize(
        ("start", "options"), [(Snapshot(), None), (Beginning(), LATEST), (Beginning(), BACKFILL)]
    )
    def test_a_scan_goes_on_too(self, lone, monkeypatch, start, options):
        strict = Strict(monkeypatch)
        strict.fill(lone)
        assert len(set(ids(everything(lone, start, options)))) == 100
        assert strict.refused

    @pytest.mark.parametrize("mode", ["all_versions", "latest"])
    def test_one_that_cannot_be_smaller_is_no_expiry_and_no_damaged_token(self, lone, monkeypatch, mode):
        strict, options = Strict(monkeypatch, most=0), CosmosOptions(mode=mode)
        token = lone.client().read_changes(ChangeFeedRequest(ADDRESS, Now(), provider_options=options))
        strict.fill(lone)
        start = FromContinuationToken(token.continuation_token)
        words = ("page of one item", "Reduce page size")
        refusal(ErrorCategory.PROVIDER_ERROR, lambda: everything(lone, start, options), *words)

    @pytest.mark.parametrize("size", [1, 50])
    @pytest.mark.parametrize("second", [(429, 3200), (503, 0), (410, 1007), (404, 1002)], ids=str)
    def test_a_400_is_no_expiry_if_another_refusal_follows(self, lone, size, second):
        """The reference of .NET's ChangeFeedMode: an expiry is a 400, as other faults are."""
        token = lone.client().read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token
        written = lone.fill(5)
        lone.server.faults.add(faults.Fail(400, message="Something else."), READ)
        lone.server.faults.add(faults.Fail(*second, retry_after=0.01), READ)
        found = everything(lone, FromContinuationToken(token), None, max_page_size=size)
        assert [event.new_item_state["n"] for event in found] == written

    def test_a_400_that_happens_once_is_no_expiry(self, lone):
        token = lone.client().read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token
        written = lone.fill(5)
        lone.server.faults.add(faults.Fail(400, message="Something else."), READ)
        found = everything(lone, FromContinuationToken(token), None, max_page_size=1)
        assert [event.new_item_state["n"] for event in found] == written

    @pytest.mark.parametrize("own", [True, False])
    def test_only_the_service_refuses_a_position_as_expired(self, lone, monkeypatch, own):
        """Microsoft Learn, Common response headers: a proxy has none that begins with `x-ms-`."""
        token = lone.client().read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token
        lone.fill(5)
        build = Adapter.build_response

        def refused(self, request, response):
            answer = build(self, request, response)
            if "/docs/" in request.url and request.headers.get("If-None-Match", "*") != "*":
                answer.status_code = 400
                answer.headers = Headers({"x-ms-version": "1"} if own else {"Content-Type": "text/html"})
            return answer

        monkeypatch.setattr(Adapter, "build_response", refused)
        category = ErrorCategory.CHECKPOINT_EXPIRED if own else ErrorCategory.INVALID_REQUEST
        refusal(category, lambda: everything(lone, FromContinuationToken(token), None), "400")

    def test_a_400_with_other_words_is_no_expiry_if_less_can_be_read(self, lone, monkeypatch):
        strict, options = Strict(monkeypatch, most=1, text="Something else."), CosmosOptions()
        token = lone.client().read_changes(ChangeFeedRequest(ADDRESS, Now()))
        strict.fill(lone)
        found = everything(lone, FromContinuationToken(token.continuation_token), options)
        assert len(set(ids(found))) == len(found) == 100
