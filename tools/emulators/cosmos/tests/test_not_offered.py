"""Tests SDK methods that the server does not offer. Each method gets a 501 answer that names the method."""

import inspect

import pytest
from azure.cosmos import ContainerProxy, DatabaseProxy, ScriptsProxy, UserProxy
from azure.cosmos.exceptions import CosmosHttpResponseError

BODY = {"id": "x", "body": "function () {}", "permissionMode": "All", "resource": "dbs/shop"}
# The SDK's objects for users and scripts have only methods that the server does not offer.
WHOLE = [UserProxy, ScriptsProxy]
PARTS = {DatabaseProxy: ("user",), ContainerProxy: ("conflict",)}
KINDS = {
    "user": "users",
    "permission": "users",
    "stored_procedure": "stored procedures",
    "trigger": "triggers",
    "user_defined_function": "user-defined functions",
    "conflict": "the conflict feed",
}


def is_missing(kind, name):
    if name.startswith("_") or (kind, name) == (DatabaseProxy, "get_user_client"):
        return False
    return kind in WHOLE or any(part in name for part in PARTS[kind])


METHODS = {
    f"{kind.__name__}.{name}": (kind, name)
    for kind in (*WHOLE, *PARTS)
    for name, _ in inspect.getmembers(kind, inspect.isfunction)
    if is_missing(kind, name)
}


def what(name):
    """Return the feature that the 501 answer names for a method of the SDK."""
    return KINDS[max((part for part in KINDS if part in name), key=len, default="user")]


def arguments(method):
    """Return a value for every required argument."""
    given = {}
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.default is inspect.Parameter.empty and parameter.kind in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        ):
            given[name] = BODY if name == "body" else "SELECT * FROM c" if name == "query" else "x"
    return given


@pytest.mark.parametrize("name", METHODS)
def test_it_is_501_and_named(direct, name):
    kind, method = METHODS[name]
    database, container = direct
    owner = {
        DatabaseProxy: database,
        ContainerProxy: container,
        ScriptsProxy: container.scripts,
        UserProxy: database.get_user_client("x"),
    }[kind]
    call = getattr(owner, method)
    with pytest.raises(CosmosHttpResponseError) as caught:
        list(call(**arguments(call)))
    assert caught.value.status_code == 501
    assert f"does not offer {what(method)}." in caught.value.message


def test_ranking_by_meaning_is_another_service(direct, server):
    """Ranking by meaning is not tested, because the SDK sends the request to another service."""
    before = server.journal.count()
    with pytest.raises(CosmosHttpResponseError, match="Semantic reranking requires AAD credentials"):
        direct[1].semantic_rerank(context="x", documents=["a"])
    assert server.journal.count() == before
