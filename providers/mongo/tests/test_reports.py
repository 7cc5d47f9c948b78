"""Tests what public reports about MongoDB's change streams, and about other readers of them, describe.

`docs/reports.toml` lists the reports.
"""

import threading

import pytest

from multiclouddb_api import (
    ChangeType,
    ClientConfig,
    ErrorCategory,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    Snapshot,
    connect,
)
from multiclouddb_conformance.refusals import refused

from .monitor import IMAGES, keys, read, walk
from .test_mongos import Mongos, _document, _rewritten

REQUIRED = NewItemStateMode.REQUIRE
REQUIRED_BEFORE = OldItemStateMode.REQUIRE


def enable(collection):
    collection.database.command("collMod", collection.name, **IMAGES)


class TestImagesThatOnlyTheLastChangeLacks:
    """SERVER-136798: the server also asks for the image of the change after which it resumes."""

    @pytest.fixture
    def token(self, written, reader, here):
        """Return a token after a change that has no images; every later change has them."""
        token = read(reader, here, Now()).continuation_token
        written.update_one({"_id": 0}, {"$set": {"v": 1}})
        page = read(reader, here, token, wait=10.0)
        assert keys(page.events) == [0]
        enable(written)
        return page.continuation_token

    @pytest.mark.parametrize(
        "mode", [{"new_item_state_mode": REQUIRED}, {"old_item_state_mode": REQUIRED_BEFORE}]
    )
    def test_the_next_changes_are_read(self, token, written, one, here, mode):
        for number in (2, 3, 4):
            written.update_one({"_id": 0}, {"$set": {"v": number}})
        with connect(one.uri()) as client:
            events = [event for page in walk(client, here, token, **mode) for event in page.events]
        assert [event.type for event in events] == [ChangeType.UPDATE] * 3
        if "new_item_state_mode" in mode:
            assert [event.new_item_state["v"] for event in events] == [2, 3, 4]
        else:
            assert [event.old_item_state["v"] for event in events] == [1, 2, 3]

    def test_a_feed_without_a_new_change_is_idle(self, token, written, one, here):
        with connect(one.uri()) as client:
            page = list(walk(client, here, token, new_item_state_mode=REQUIRED))[-1]
            written.update_one({"_id": 0}, {"$set": {"v": 2}})
            page = read(client, here, page.continuation_token, wait=10.0, new_item_state_mode=REQUIRED)
        assert [event.new_item_state["v"] for event in page.events] == [2]


class Altered(Mongos):
    """A member some of whose commands are refused, and whose answers are changed."""

    def changed(self, command, answer):
        return answer

    def refusal(self, command):
        return None

    def answer(self, asked, ask):
        command = _document(asked)
        refusal = self.refusal(command)
        if refusal is not None:
            asked = _rewritten(asked, {"ping": 1, "$db": "admin"})
        answer = ask(asked)
        said = _document(answer) if refusal is None else {"ok": 0.0, **refusal}
        return _rewritten(answer, self.changed(command, said))


@pytest.fixture
def altered(one, request):
    with request.param(one.members[0], 0) as made:
        threading.Thread(target=made.serve_forever, args=(0.05,)).start()
        yield made
        made.shutdown()


def by(server):
    return connect(ClientConfig("mongo", {"url": server.uri + "&directConnection=true"}))


class WithoutUuid(Altered):
    """FerretDB #3613: a server that names no UUIDs of collections."""

    def changed(self, command, answer):
        if "listCollections" in command:
            for each in answer["cursor"]["firstBatch"]:
                each.get("info", {}).pop("uuid", None)
        return answer


@pytest.mark.parametrize("altered", [WithoutUuid], indirect=True)
def test_a_snapshot_of_a_collection_without_a_uuid_is_refused(altered, written, here):
    """Without the id, the collection was taken for one that had no rows."""
    with by(altered) as client:
        with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "UUID"):
            read(client, here, Snapshot())
        token = read(client, here, Now()).continuation_token
        written.insert_one({"_id": 1})
        assert keys(read(client, here, token, wait=10.0).events) == [1]


class Regressing(Altered):
    """SERVER-135099: until there is a change, the position is before the one that was asked for."""

    asked = ""

    def changed(self, command, answer):
        stage = (command.get("pipeline") or [{}])[0].get("$changeStream", {})
        if "resumeAfter" in stage:
            self.asked = stage["resumeAfter"]["_data"]
        cursor = answer.get("cursor", {})
        if cursor.get("postBatchResumeToken", {}).get("_data") == self.asked:
            cursor["postBatchResumeToken"] = {"_data": f"{self.asked[:18]}2B0229296E04"}
        return answer


@pytest.mark.parametrize("altered", [Regressing], indirect=True)
def test_a_position_never_goes_back(altered, written, here):
    with by(altered) as client:
        token = read(client, here, Now()).continuation_token
        written.insert_one({"_id": 1})
        page = read(client, here, token, wait=10.0)
        assert keys(page.events) == [1]
    with by(altered) as client:
        page = read(client, here, page.continuation_token)
    with by(altered) as client:
        assert keys(read(client, here, page.continuation_token, wait=0.5).events) == []


NO_V1 = (6497000, "Invalid request for v1 resume tokens")
NOT_FOUND = (280, "cannot resume stream; the resume token was not found")


class Splitting(Altered):
    """A server of a version that splits large events, and that refuses to for another reason."""

    refuses = NO_V1

    def refusal(self, command):
        stages = command.get("pipeline") or [{}]
        if not any("$changeStreamSplitLargeEvent" in stage for stage in stages):
            return None
        is_at = "resumeAfter" in stages[0]["$changeStream"] or self.refuses is NO_V1
        code, text = self.refuses if is_at else (40324, "Unrecognized pipeline stage name")
        return {"code": code, "errmsg": text}

    def changed(self, command, answer):
        return answer | {"maxWireVersion": 21} if "maxWireVersion" in answer else answer


@pytest.mark.parametrize("altered", [Splitting], indirect=True)
@pytest.mark.parametrize("refuses", [NO_V1, NOT_FOUND])
def test_a_stage_that_is_refused_in_other_words_is_left_out(altered, written, here, refuses, one):
    """SERVER-85707 and SERVER-81295: neither the code nor the text names the stage."""
    altered.refuses = refuses
    with connect(one.uri()) as client:
        token = read(client, here, Now()).continuation_token
        written.insert_one({"_id": 1})
        token = read(client, here, token, wait=10.0).continuation_token
    written.insert_one({"_id": 2})
    with by(altered) as client:
        assert keys(read(client, here, token, wait=10.0).events) == [2]


class Leaking(Altered):
    """SERVER-135376: a position that comes without a change is that of a hidden event, and is not found."""

    refused = 0
    error = (280, "cannot resume stream; the resume token was not found.")

    def refusal(self, command):
        stage = (command.get("pipeline") or [{}])[0].get("$changeStream", {})
        if not stage.get("resumeAfter", {}).get("_data", "").endswith("0229296E04"):
            return None
        self.refused += 1
        return dict(zip(("code", "errmsg"), self.error, strict=True))


@pytest.mark.parametrize("altered", [Leaking], indirect=True)
@pytest.mark.parametrize(
    "error",
    [
        Leaking.error,
        (260, "Attempted to resume a single-collection stream, but the resume token does not include a UUID"),
    ],
    ids=["280", "260"],
)
def test_a_position_that_the_server_does_not_find_is_resumed_by_its_time(altered, written, here, error):
    altered.error = error
    with by(altered) as client:
        token = read(client, here, Now()).continuation_token
    written.insert_many([{"_id": key} for key in (1, 2, 3)])
    with by(altered) as client:
        pages = list(walk(client, here, token))
    assert [key for page in pages for key in keys(page.events)] == [1, 2, 3]
    assert altered.refused
