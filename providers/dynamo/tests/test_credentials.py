"""Tests what a user is told about AWS profiles, and that credentials which have aged are looked for again."""

import pytest

from multiclouddb_api import (
    ClientConfig,
    ErrorCategory,
    MulticloudDbError,
    MulticloudDbKey,
    Snapshot,
    connect,
)
from multiclouddb_conformance.refusals import refused
from testing.metadata_service import metadata_service

from .servers.server import REGION
from .world import ADDRESS, seconds

AUTHENTICATION, TRANSIENT = ErrorCategory.AUTHENTICATION_FAILED, ErrorCategory.TRANSIENT_FAILURE
EXPIRED = "ExpiredTokenException"
ROLE = "role_arn=arn:aws:iam::1:role/x"
# Each row: the lines of the profile `a` → the category, and a part of the text.
PROFILES = {
    "a loop": (f"{ROLE}\nsource_profile=b\n[profile b]\n{ROLE}\nsource_profile=a", AUTHENTICATION, "loop"),
    "no such source": (f"{ROLE}\nsource_profile=nowhere", AUTHENTICATION, "nowhere"),
    "no source": (ROLE, AUTHENTICATION, "source_profile"),
    "another source": (f"{ROLE}\ncredential_source=Elsewhere", AUTHENTICATION, "Elsewhere"),
    "an unknown session": ("sso_session=nope\nsso_account_id=1\nsso_role_name=r", AUTHENTICATION, "nope"),
    "no session": (
        "sso_start_url=https://x.invalid\nsso_region=eu-west-1\nsso_account_id=1\nsso_role_name=r",
        AUTHENTICATION,
        "SSO",
    ),
    "no such program": ("credential_process=/no/such/program", AUTHENTICATION, "/no/such/program"),
    "a program without JSON": ("credential_process=/bin/echo hello", AUTHENTICATION, "get credentials"),
    "a program that fails": ("credential_process=/bin/false", TRANSIENT, "custom-process"),
    "no such token": (f"{ROLE}\nweb_identity_token_file=/no/such/file", AUTHENTICATION, "/no/such/file"),
    "a broken file": ("[profile c", ErrorCategory.INVALID_REQUEST, "parse config file"),
}


@pytest.fixture
def files(monkeypatch, tmp_path):
    """Let boto3 find credentials only in these files."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def write(files, key):
    lines = f"aws_access_key_id={key}\naws_secret_access_key=secret\naws_session_token=token"
    (files / "credentials").write_text(f"[default]\n{lines}\n")


@pytest.mark.parametrize(("lines", "category", "text"), PROFILES.values(), ids=list(PROFILES))
def test_a_mistake_in_a_profile_is_told_in_the_words_of_boto3(
    world, files, monkeypatch, lines, category, text
):
    (files / "config").write_text(f"[profile a]\n{lines}\n")
    monkeypatch.setenv("AWS_PROFILE", "a")
    config = ClientConfig("dynamo", {"region": REGION, "endpoint_url": world.script.endpoint_url})
    with pytest.raises(MulticloudDbError) as caught, connect(config) as client:
        world.consumer(client=client).read(seconds(2))
    error = caught.value
    assert error.category == category
    assert text in error.message
    assert "defect" not in error.message
    assert error.detail.retryable is (category == TRANSIENT)


class TestMachineRole:
    @pytest.fixture
    def machine(self, files, monkeypatch):
        with metadata_service(monkeypatch) as statuses:
            yield statuses

    @pytest.mark.parametrize("status", [500, 503, 429])
    @pytest.mark.parametrize("what", ["token", "roles", "role"])
    def test_a_metadata_service_that_fails_is_an_outage(self, world, machine, what, status):
        world.put("a")
        machine[what] = status
        config = ClientConfig("dynamo", {"region": REGION, "endpoint_url": world.script.endpoint_url})
        with connect(config) as client:
            consumer = world.consumer(client=client)
            with refused(TRANSIENT, "metadata service"):
                consumer.read(seconds(2))
            machine.clear()
            consumer.until_idle()
        assert consumer.markers == [1]

    @pytest.mark.parametrize("is_there", [True, False])
    def test_a_machine_without_a_role_is_told_at_once(self, world, machine, monkeypatch, is_there):
        machine["roles"] = 404
        if not is_there:
            monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1/")
        config = ClientConfig("dynamo", {"region": REGION, "endpoint_url": world.script.endpoint_url})
        with connect(config) as client, refused(AUTHENTICATION, "credentials"):
            world.consumer(client=client).read(seconds(30))


class TestAgedCredentials:
    """A program has written new credentials into the file, for example `aws sso login` or a cron job."""

    @pytest.fixture
    def client(self, world, files):
        write(files, "OLD")
        config = ClientConfig("dynamo", {"region": REGION, "endpoint_url": world.script.endpoint_url})
        with connect(config) as client:
            yield client

    def test_the_feed_goes_on_with_those_that_are_there_now(self, world, files, client):
        world.put("a")
        consumer = world.consumer(client=client)
        consumer.until_idle()
        world.habits.expired_keys.add("OLD")
        write(files, "NEW")
        world.put("b")
        consumer.until_idle()
        assert consumer.markers == [1, 2]
        refusals = [call for call in world.journal.calls() if call.code == EXPIRED]
        assert len(refusals) <= 1

    @pytest.mark.parametrize(
        "code", ["UnrecognizedClientException", "InvalidSignatureException", "InvalidClientTokenId"]
    )
    def test_a_key_that_was_replaced_is_looked_for_again_too(self, world, files, client, code):
        """The service does not call it expired."""
        world.put("a")
        key = MulticloudDbKey({"id": "a"})
        client.lookup(ADDRESS, [key])
        write(files, "NEW")
        world.troubles.fail("BatchGetItem", code, 1)
        assert client.lookup(ADDRESS, [key])[key].new_item_state["n"] == 1

    def test_look_ups_and_scans_go_on_too(self, world, files, client):
        world.put("a")
        key = MulticloudDbKey({"id": "a"})
        client.lookup(ADDRESS, [key])
        for number in range(2):
            world.habits.expired_keys.add(f"NEW{number}" if number else "OLD")
            write(files, f"NEW{number + 1}" if number else "NEW1")
            assert client.lookup(ADDRESS, [key])[key].new_item_state["n"] == 1
        scan = world.consumer(Snapshot(segments=1), client=client)
        world.habits.expired_keys.add("NEW2")
        write(files, "NEW3")
        scan.until_idle()
        assert scan.markers == [1]

    def test_without_new_ones_the_refusal_costs_no_further_request(self, world, files, client):
        consumer = world.consumer(client=client)
        consumer.until_idle()
        world.habits.expired_keys.add("OLD")
        with refused(AUTHENTICATION, EXPIRED, "get new credentials"):
            consumer.read(seconds(5))
        assert len([call for call in world.journal.calls() if call.code == EXPIRED]) == 1
        write(files, "NEW")
        consumer.until_idle()

    def test_the_session_of_an_application_is_not_replaced(self, world):
        consumer = world.consumer()
        consumer.until_idle()
        world.habits.expired_keys.add("local")
        with refused(AUTHENTICATION, EXPIRED, "get new credentials"):
            consumer.read(seconds(5))
