"""Tests `multiclouddb set-aside list` and `set-aside retry`."""

import json
from datetime import UTC, datetime

import pytest

from multiclouddb_api import Beginning, ChangeEvent, ChangeType, MulticloudDbKey, ResourceAddress, follow
from multiclouddb_api.set_aside import SetAside, SetAsideFolder

HANDLER = """
import pathlib

def handle(event):
    if event.new_item_state["total"] == 3 and not pathlib.Path("mended").exists():
        raise ValueError("total is a secret 3")
    print("handled", event.key["id"], event.new_item_state["total"])

async def later(event):
    handle(event)
"""


@pytest.fixture
def aside(store, url, tmp_path, monkeypatch):
    """Set aside the changes of o-3: of its total 3, and of 30 behind it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"worker_{tmp_path.name}.py").write_text(HANDLER)
    store.put("orders", "o-3", {"total": 30})
    with follow(url, "orders", start=Beginning(), until_idle=True, set_aside="aside") as changes:
        for event in changes:
            with changes.handling(event):
                if event.new_item_state["total"] == 3:
                    raise ValueError("total is a secret 3")
    return tmp_path / "aside"


@pytest.fixture
def worker(tmp_path):
    return f"worker_{tmp_path.name}"


def test_list_shows_key_and_reason(run, aside):
    done = run("set-aside", "list", aside)
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    [hint] = done.stderr.splitlines()
    assert hint.endswith(f"then: multiclouddb set-aside retry {aside} MODULE:FUNCTION URL")
    assert '{"id":"o-3"}' in lines[1]
    assert "ValueError in aside" in lines[1]
    assert "an earlier change of its key is set aside" in lines[2]
    assert "secret" not in lines[1]


def test_list_as_json_has_one_line_for_each(run, aside):
    found = [json.loads(line) for line in run("set-aside", "list", aside, "--json").stdout.splitlines()]
    assert [each["key"] for each in found] == [{"id": "o-3"}, {"id": "o-3"}]


def test_list_cuts_a_long_key_and_json_has_it_whole(run, tmp_path):
    key = MulticloudDbKey({"id": "k" * 100_000})
    address = ResourceAddress("main", "orders")
    now = datetime.now(UTC)
    event = ChangeEvent("1", key, ChangeType.CREATE, now, {}, None, "1", False, False, address, "p0")
    record = SetAside.of_event(event, address, "sqlite:t.db#o", "it", documents=False)
    SetAsideFolder(tmp_path).add([record])
    heads, row = run("set-aside", "list", tmp_path).stdout.splitlines()
    assert max(len(heads), len(row)) < 200
    assert '  {"id":"kkk' in row
    assert "kkk…  it" in row
    assert json.loads(run("set-aside", "list", tmp_path, "--json").stdout)["key"] == {"id": "k" * 100_000}


def test_list_names_the_retry_of_each_table_of_a_mirror(run, tmp_path):
    assert "nothing" in run("set-aside", "list", tmp_path).stderr
    folder = SetAsideFolder(tmp_path)
    for name in ("orders", "orders", "bills"):
        address = ResourceAddress("main", name)
        folder.add([SetAside(address, f"sqlite:t.db#{name}", "p", "1", "it", datetime.now(UTC))])
    lines = run("set-aside", "list", tmp_path).stderr.splitlines()
    assert [line.split(", then: ") for line in lines] == [
        [
            f"correct sqlite:t.db#{name} or the documents of main/{name}",
            f"multiclouddb set-aside retry {tmp_path} TARGET URL",
        ]
        for name in ("bills", "orders")
    ]


@pytest.mark.parametrize("function", ["handle", "later"])
def test_retry_handles_them_in_order_with_the_document_of_now(run, aside, url, worker, function):
    done = run("set-aside", "retry", aside, f"{worker}:{function}", url)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[:2] == ["handled o-3 30", "handled o-3 30"]
    assert list(aside.iterdir()) == []


def test_what_fails_again_stays_and_the_exit_code_says_so(run, store, aside, url, worker):
    store.put("orders", "o-3", {"total": 3})
    done = run("set-aside", "retry", aside, f"{worker}:handle", url, "--json")
    assert done.exit_code == 18
    assert json.loads(done.stdout)["left"] == 2
    assert "secret" not in done.output
    (aside.parent / "mended").touch()
    assert run("set-aside", "retry", aside, f"{worker}:handle", url).exit_code == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["aside", "{worker}"], "write MODULE:FUNCTION"),
        (["aside", "{worker}:nothing"], "has no attribute"),
        (["aside", "not_there:handle"], "No module named"),
        (["nowhere", "{worker}:handle"], "nowhere is no folder"),
    ],
)
def test_a_wrong_word_is_named(run, aside, worker, words, problem):
    done = run("set-aside", "retry", *(word.format(worker=worker) for word in words))
    assert done.exit_code == 2
    assert problem in done.stderr


def test_without_url_it_says_what_is_missing(run, aside, worker):
    done = run("set-aside", "retry", aside, f"{worker}:handle")
    assert done.exit_code == 3
    assert "client: is missing" in done.stderr
