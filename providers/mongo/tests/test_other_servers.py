"""Tests servers of MongoDB's protocol whose resume tokens have another form, or are absent."""

import threading

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    Now,
    ResourceAddress,
    Snapshot,
    connect,
)
from multiclouddb_conformance.refusals import refused

from .monitor import keys, read
from .servers.mongod import shared
from .test_mongos import Mongos, _document, _rewritten

OWN_SETS = ("other",)


def changed(value, change):
    """Return a value of BSON in which every resume token was changed."""
    if isinstance(value, dict):
        if isinstance(value.get("_data"), str):
            return change(value)
        return {name: changed(item, change) for name, item in value.items()}
    return [changed(item, change) for item in value] if isinstance(value, list) else value


class Other(Mongos):
    """A member whose resume tokens begin with 01, as in AWS's documentation of DocumentDB, or are absent."""

    has_tokens = True

    def answer(self, asked, ask):
        command = changed(_document(asked), lambda token: {**token, "_data": "82" + token["_data"][2:]})
        answer = ask(_rewritten(asked, command))
        said = changed(_document(answer), lambda token: {**token, "_data": "01" + token["_data"][2:]})
        if not self.has_tokens and "cursor" in said:
            said["cursor"].pop("postBatchResumeToken", None)
        return _rewritten(answer, said)


@pytest.fixture
def other():
    with Other(shared("other").members[0], 0) as made:
        threading.Thread(target=made.serve_forever, args=(0.05,)).start()
        yield made
        made.shutdown()


@pytest.fixture
def written(database):
    collection = shared("other").client()[database]["c"]
    collection.insert_one({"_id": 0})
    return collection


def test_tokens_of_another_form_are_kept_but_rows_cannot_be_put_in_order(other, written):
    here = ResourceAddress(written.database.name, "c")
    url = other.uri + "&directConnection=true"
    with connect(ClientConfig("mongo", {"url": url})) as client:
        token = read(client, here, Now()).continuation_token
        written.insert_many([{"_id": key} for key in range(1, 6)])
        request = ChangeFeedRequest(here, FromContinuationToken(token))
        with client.iterate_changes(request, until_idle=True) as changes:
            assert keys(changes) == [1, 2, 3, 4, 5]
        with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "begin with the cluster time"):
            read(client, here, Snapshot())


class Without(Mongos):
    """A server without change streams, such as FerretDB 2, and without commands of a replica set."""

    said = ""
    code = 0

    def answer(self, asked, ask):
        command = _document(asked)
        stage = (command.get("pipeline") or [{}])[0]
        if "$changeStream" not in stage and "replSetGetConfig" not in command:
            return ask(asked)
        code, said = (self.code, self.said) if stage else (59, "no such command: 'replSetGetConfig'")
        answer = ask(_rewritten(asked, {"ping": 1, "$db": "admin"}))
        return _rewritten(answer, {"ok": 0.0, "code": code, "errmsg": said})


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (40324, "Unrecognized pipeline stage name: '$changeStream'"),
        (115, "Stage $changeStream is not supported yet in native pipeline"),
        (238, "stage $changeStream is not implemented yet"),
        (303, "Feature not supported: change streams"),
    ],
)
def test_a_server_without_change_streams_says_so(written, code, said):
    with Without(shared("other").members[0], 0) as made:
        made.code, made.said = code, said
        threading.Thread(target=made.serve_forever, args=(0.05,)).start()
        here = ResourceAddress(written.database.name, "c")
        with connect(ClientConfig("mongo", {"url": made.uri + "&directConnection=true"})) as client:
            for start in (Now(), Beginning(), Snapshot()):
                with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "no change streams"):
                    read(client, here, start)
        made.shutdown()


def test_a_server_that_sends_no_token_without_a_change_is_refused(other, written):
    other.has_tokens = False
    here = ResourceAddress(written.database.name, "c")
    with connect(ClientConfig("mongo", {"url": other.uri + "&directConnection=true"})) as client:
        for start in (Now(), Beginning()):
            with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "resume token"):
                read(client, here, start)
