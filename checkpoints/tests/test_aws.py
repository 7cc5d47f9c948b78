"""Tests what the stores on AWS tell about boto3's own failures: profiles, settings and clocks."""

from string import Formatter

import boto3
import pytest
from botocore import exceptions as boto

from multiclouddb_api import ErrorCategory, MulticloudDbError, open_checkpoint_store
from multiclouddb_checkpoints import DynamoCheckpointStore
from multiclouddb_conformance.refusals import refused
from testing.frames import shown_by
from testing.metadata_service import metadata_service

AUTHENTICATION = ErrorCategory.AUTHENTICATION_FAILED
URLS = ["s3://bucket/p?region=eu-west-1", "dynamodb://table/p?region=eu-west-1"]
PROFILES = {
    "no such source": ("role_arn=arn:aws:iam::1:role/x\nsource_profile=nowhere", AUTHENTICATION, "nowhere"),
    "no such session": ("sso_session=nope\nsso_account_id=1\nsso_role_name=r", AUTHENTICATION, "nope"),
    "no such program": ("credential_process=/no/such/program", AUTHENTICATION, "/no/such/program"),
    "a program without JSON": ("credential_process=/bin/echo hello", AUTHENTICATION, "credential chain"),
    "a broken file": ("[profile c", ErrorCategory.INVALID_REQUEST, "parse config file"),
}
KINDS = [
    kind
    for kind in vars(boto).values()
    if isinstance(kind, type) and issubclass(kind, boto.BotoCoreError) and kind.__module__ == boto.__name__
]


@pytest.fixture(params=URLS, ids=["s3", "dynamodb"])
def store(request, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return open_checkpoint_store(request.param)


def answered(code, text, operation):
    error = {"Error": {"Code": code, "Message": text}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    return boto.ClientError(error, operation)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_mistake_in_a_profile_is_told_in_the_words_of_boto3(store, monkeypatch, tmp_path, profile):
    lines, category, text = PROFILES[profile]
    (tmp_path / "config").write_text(f"[profile a]\n{lines}\n")
    monkeypatch.setenv("AWS_PROFILE", "a")
    with pytest.raises(MulticloudDbError) as caught:
        store.load("orders")
    assert caught.value.category == category
    assert text in caught.value.message
    assert "defect" not in caught.value.message
    assert not caught.value.detail.retryable


@pytest.mark.parametrize("line", ["aws_secret_access_key correct-horse", "aws_access_key_id = correct-horse"])
def test_a_broken_file_of_credentials_is_shown_nowhere(store, tmp_path, line):
    (tmp_path / "credentials").write_text(f"[default]\n{line}\n")
    with pytest.raises(MulticloudDbError) as caught:
        store.load("orders")
    assert "report" not in caught.value.message
    assert [text for text in shown_by(caught.value, without=__file__) if "correct-horse" in text] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_exception_of_botocore_is_called_a_defect(store, kind):
    names = {name for _, name, _, _ in Formatter().parse(getattr(kind, "fmt", "")) if name}
    names |= {"last_response"} if kind is boto.WaiterError else set()
    found = store._fault(kind(**dict.fromkeys(names, "x")))
    assert "defect" not in found.message
    assert found.category != ErrorCategory.PERMANENT_FAILURE
    assert kind.__name__ in found.message


@pytest.mark.parametrize("operation", ["PutObject", "PutItem", "AssumeRole"])
@pytest.mark.parametrize("code", ["SignatureDoesNotMatch", "InvalidSignatureException"])
def test_a_wrong_clock_is_named_with_both_times(store, operation, code):
    text = (
        "Signature expired: 20260101T000000Z is now earlier than 20260101T001000Z (20260101T001500Z - 5 min.)"
    )
    found = store._fault(answered(code, text, operation))
    assert (found.category, found.retryable) == (AUTHENTICATION, True)
    assert (
        "signed at 2026-01-01T00:00:00Z, and the service's clock says 2026-01-01T00:15:00Z" in found.message
    )
    error = answered("RequestTimeTooSkewed", "", operation)
    error.response["Error"] |= {"RequestTime": "20260101T000000Z", "ServerTime": "2026-01-01T00:15:00Z"}
    assert store._fault(error).message.endswith(found.message.partition(";")[2])


@pytest.mark.parametrize("code", ["InvalidIdentityToken", "RegionDisabledException", "ValidationError"])
def test_an_answer_to_a_question_for_credentials_is_no_answer_of_the_store(store, code):
    found = store._fault(answered(code, "the reason", "AssumeRoleWithWebIdentity"))
    assert found.category == AUTHENTICATION
    assert "the reason" in found.message
    assert "credential chain" in found.message


@pytest.mark.parametrize(
    ("code", "category"),
    [
        ("IDPCommunicationError", ErrorCategory.TRANSIENT_FAILURE),
        ("TooManyRequestsException", ErrorCategory.THROTTLED),
    ],
)
def test_a_service_of_credentials_that_is_busy_is_no_wrong_identity(store, code, category):
    found = store._fault(answered(code, "try later", "AssumeRoleWithWebIdentity"))
    assert (found.category, found.retryable) == (category, True)


def test_the_client_of_a_resource_is_refused():
    """It converts each value of an item, so the store would ask for a map."""
    resource = boto3.resource("dynamodb", region_name="eu-west-1")
    with pytest.raises(MulticloudDbError, match="boto3 resource") as caught:
        DynamoCheckpointStore("dynamodb://table/p", resource.meta.client)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    DynamoCheckpointStore("dynamodb://table/p", boto3.client("dynamodb", region_name="eu-west-1"))


class TestMachineRole:
    """The store gets its credentials from the metadata service of its machine."""

    @pytest.fixture
    def machine(self, store, monkeypatch):
        with metadata_service(monkeypatch) as statuses:
            yield statuses

    @pytest.mark.parametrize("status", [500, 503, 429])
    @pytest.mark.parametrize("what", ["token", "roles", "role"])
    @pytest.mark.parametrize("service", ["s3", "dynamodb"])
    def test_a_metadata_service_that_fails_is_an_outage(self, machine, service, what, status):
        store = open_checkpoint_store(
            f"{service}://bucket/p?region=eu-west-1&endpoint_url=http://127.0.0.1:1"
        )
        machine[what] = status
        with refused(ErrorCategory.TRANSIENT_FAILURE, "metadata service"):
            store.load("orders")
        machine.clear()
        with refused(ErrorCategory.TRANSIENT_FAILURE, "127.0.0.1:1"):  # signed, and nobody answers
            store.load("orders")

    @pytest.mark.parametrize("is_there", [True, False])
    def test_a_machine_without_a_role_is_told_at_once(self, store, machine, monkeypatch, is_there):
        machine["roles"] = 404
        if not is_there:
            monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1/")
        with refused(AUTHENTICATION, "credentials"):
            store.load("orders")
