"""Tests that each row of the table in SECURITY.md, and each of its sentences, has a test that holds it.

A row or a sentence that is changed or added has to be listed here, with the tests that plant a marked key,
field or secret, or with the reason why it promises nothing.
"""

import logging
import re
from pathlib import Path

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, connect
from multiclouddb_embedded import EmbeddedStore

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()
US8 = "conformance/multiclouddb_conformance/us8/session.py::"
SECRETS = (
    US8 + "test_documents_and_keys_are_in_no_repr_and_no_log",
    US8 + "test_what_a_client_connects_with_is_in_no_repr_message_or_log",
)
TOKENS = (US8 + "test_a_token_and_a_partition_id_hold_no_document_and_no_secret",)
SHORTENED = ("tests/test_values.py::test_every_field_that_is_a_token_is_shortened",)
DATA = (
    "tests/test_vendor_texts.py::test_the_fields_with_data_are_cut",
    "tests/test_vendor_texts.py::test_what_follows_quoted_data_stays",
    "providers/cosmos/tests/test_guards.py::test_a_look_up_that_cannot_be_sent_does_not_name_its_item",
    "tests/test_vendor_texts.py::test_no_form_of_an_error_shows_data",
    "providers/cosmos/tests/test_config.py::test_the_password_of_a_proxy_is_shown_nowhere",
    "providers/dynamo/tests/test_provider.py::test_the_password_of_a_proxy_is_shown_nowhere",
    "providers/spanner/tests/test_config.py::test_the_password_of_a_proxy_is_shown_nowhere",
    "tables/postgres/tests/test_sink.py::test_what_a_trigger_says_of_a_row_is_in_no_error",
)
PASSWORDS = (
    "tables/postgres/tests/test_secrets.py::test_every_character_of_a_password",
    "tables/postgres/tests/test_secrets.py::test_the_errors_of_a_server_that_refuses",
    "tables/postgres/tests/test_secrets.py::test_verify_and_the_command_line",
    "tests/test_secrets.py::test_no_character_of_a_password_makes_it_another_part_of_the_url",
    "providers/mongo/tests/test_config.py::test_no_message_cause_or_context_quotes_one",
    "providers/mongo/tests/test_specifications.py::test_a_password_in_a_command_is_in_no_error_and_no_log",
)
CONFIG = (
    "tests/test_config.py::test_shows_no_secret",
    "tests/test_config.py::test_no_text_of_the_connection_is_shown_where_a_reporter_shows_variables",
)
PRIVATE = (
    "conformance/certify/tests/test_secrets.py::test_a_run_takes_what_connect_takes_and_leaves_private_files",
)
SPARK = ("spark/tests/test_versions.py::test_no_secret_of_a_database_is_shown_or_written",)
BOUNDS = (
    "providers/cosmos/tests/test_transport.py::test_an_answer_is_bounded_while_it_is_decompressed",
    "providers/spanner/tests/test_answer_bound.py::test_a_message_that_the_service_never_sends_is_refused",
    "providers/dynamo/tests/test_answer_bound.py::test_an_answer_that_never_ends_is_given_up",
    "tests/test_bounded_pools.py::test_an_answer_beyond_the_bound_is_given_up",
)
WARNING = "it warns, and promises nothing"
ADVICE = "it says what to do"
FACT = "it describes what this library is"

READS = (
    "providers/dynamo/tests/test_provider.py::"
    "test_nothing_is_written_and_the_clients_of_the_application_stay_as_they_are",
    *(
        f"providers/{file}::test_nothing_is_written_and_the_client_of_the_application_stays_as_it_is"
        for file in (
            "cosmos/tests/test_reader.py",
            "mongo/tests/test_specifications.py",
            "spanner/tests/test_scripted_snapshot.py",
        )
    ),
)

ROWS = {
    "continuation token": TOKENS,
    "checkpoint": (
        *TOKENS,
        "conformance/multiclouddb_conformance/checkpoint_stores.py::test_files_are_for_their_owner",
        "conformance/multiclouddb_conformance/checkpoint_stores.py::test_no_repr_has_a_token",
    ),
    "mark of a table": ("docs/tests/test_security.py::test_a_mark_holds_no_key_and_no_value",),
    "partition id": TOKENS,
    "event, page": SECRETS,
    "`event.native`": ("tests/test_values.py::test_is_frozen_comparable_and_picklable_and_shows_no_secret",),
    "`ClientConfig`": CONFIG,
    "error": (*SECRETS, *DATA, *PASSWORDS),
    "log of `multiclouddb.*`": (
        *SECRETS,
        "tests/engine/test_trouble.py::test_the_text_of_its_exception_is_not_logged",
        "tests/test_outage.py::test_an_observer_that_raises_ends_nothing",
    ),
    "log of a vendor's library": (
        "docs/tests/test_security.py::test_no_logger_of_a_vendor_is_changed",
        "providers/cosmos/tests/test_guards.py::test_what_azure_cosmos_logs_names_items_and_has_no_fields",
    ),
    "what an `Observer`": (
        *TOKENS,
        "tests/engine/test_trouble.py::test_only_pages_tell_it_keys_and_documents",
    ),
    "`verify`'s state folder": (
        "tables/postgres/tests/test_verify.py::test_the_state_folder_holds_keys_and_digests_and_nothing_else",
    ),
    "`verify`'s report": (
        "cli/tests/test_verify.py::test_difference_ends_with_11_and_names_key_path_and_types_but_no_value",
        "tables/postgres/tests/test_secrets.py::test_verify_and_the_command_line",
        "tables/postgres/tests/test_verify.py::test_command_line_never_shows_the_password",
    ),
    "Spark's checkpoint folder": (
        *SPARK,
        "spark/tests/test_source.py::test_a_checkpoint_folder_holds_positions_and_no_document",
    ),
    "Spark's event log": (
        *SPARK,
        "spark/tests/test_connect.py::test_batch_stream_sink_and_errors",
        "spark/tests/test_source.py::test_secrets_are_not_in_the_plan_of_a_stream",
    ),
    "tasks that Spark's driver": WARNING,
    "report of `certify`": (
        *PRIVATE,
        "conformance/certify/tests/test_dynamo.py::test_it_passes_removes_everything_counts_and_reports_nothing_private",
    ),
    "drill folder": (
        "conformance/certify/tests/test_secrets.py::test_its_folder_holds_the_name_of_the_secret_alone",
        "conformance/certify/tests/test_secrets.py::test_a_url_that_may_contain_a_secret_is_not_stored",
    ),
}

SENTENCES = {
    "This library has no credentials": FACT,
    "It uses the vendor's credential chain": (
        "providers/cosmos/tests/test_config.py::"
        "test_a_credential_comes_from_the_application_the_environment_or_azure",
        "providers/dynamo/tests/test_provider.py::test_credentials_that_are_missing",
    ),
    "The settings in `connection`": ("providers/mongo/tests/test_config.py::test_a_user_and_a_password",),
    "Keep secrets out of URLs": ("tests/test_config.py::test_reads_every_field",),
    "With `native_client=`": ("tests/test_client.py::test_passes_the_native_client_and_the_observer_on",),
    "It does not configure or close": (
        *READS,
        "providers/cosmos/tests/test_reader.py::test_an_application_s_own_client_stays_open",
        "providers/embedded/tests/test_config.py::test_a_native_client_is_an_open_store",
        "providers/mongo/tests/test_specifications.py::test_rr_17_the_application_s_own_client_decides",
    ),
    "What this library itself would configure": (
        "tests/test_plaintext.py::test_another_machine_needs_a_second_word",
        "tests/test_plaintext.py::test_checkpoint_stores_need_it_too",
    ),
    "A reader writes nothing": (
        *READS,
        "providers/embedded/tests/test_disk.py::test_a_read_only_file_is_read_and_not_written",
    ),
    "`run_command` and": ("providers/mongo/tests/test_specifications.py::test_a_command_is_sent_as_it_is",),
    "The embedded store is one file": FACT,
    "Every user who may read": WARNING,
    "**Tokens from outside.** A token contains only data.": TOKENS,
    "Decoding it runs no code": (
        "tests/engine/test_token.py::test_any_payload_with_a_right_checksum_is_refused",
        "tests/engine/test_token.py::test_a_process_with_little_memory_survives_it",
    ),
    "Text that is not a token raises": (
        "tests/engine/test_token.py::test_a_payload_that_is_no_token_is_refused",
        "conformance/multiclouddb_conformance/us8/identity.py::test_of_another_provider",
        "conformance/multiclouddb_conformance/us8/identity.py::test_of_another_collection",
    ),
    "A checksum detects damage": (
        "tests/engine/test_token.py::test_every_change_of_one_character_is_refused",
        "tests/engine/test_token.py::test_a_token_that_is_made_by_hand_is_read",
    ),
    "A user who can pass a token": WARNING,
    "If you give tokens": ADVICE,
    "Alternatively, keep the tokens": ADVICE,
    "**Answers.** What a service": BOUNDS,
    "A larger one is `PROVIDER_ERROR`.": BOUNDS,
    "The messages that PyMongo reads": WARNING,
    "But a checkpoint of more than": (
        "checkpoints/tests/test_azure_blob.py::test_a_content_is_read_as_it_is_stored_and_up_to_the_bound",
        "checkpoints/tests/test_gcs.py::test_a_content_is_read_as_it_is_stored_and_up_to_the_bound",
        "checkpoints/tests/test_s3.py::test_an_object_is_read_up_to_the_bound_of_a_checkpoint",
        "checkpoints/tests/test_dynamo.py::test_a_small_item_that_becomes_a_large_content_is_refused",
        "conformance/multiclouddb_conformance/checkpoint_stores.py::"
        "test_a_token_that_no_store_reads_is_not_saved",
        "tables/postgres/tests/test_checkpoints.py::test_checkpoint_beyond_the_bound_is_refused_and_not_read",
        "providers/embedded/tests/test_checkpoints.py::"
        "test_a_checkpoint_beyond_the_bound_is_refused_and_not_read",
    ),
    "**Pickles.** Values and errors": (
        "tests/test_values.py::test_is_frozen_comparable_and_picklable_and_shows_no_secret",
        "tests/test_errors.py::test_pickles_and_copies_with_its_detail_and_notes",
    ),
    "A pickled `ClientConfig`": (
        "tests/test_config.py::test_the_connection_is_a_copy_and_pickles",
        "tables/postgres/tests/test_secrets.py::test_a_pickle_has_the_password_and_what_is_made_of_it_shows_none",
    ),
    "Spark also pickles": WARNING,
    "A client cannot be pickled.": (
        "conformance/multiclouddb_conformance/us8/session.py::test_a_client_does_not_and_says_what_does",
        "tests/test_client.py::test_a_client_is_not_pickled_but_its_configuration_is",
    ),
    "As in every Python program": ADVICE,
    "- `repr` of a value that holds a token": SHORTENED,
    "Tokens of a feed are longer.": (US8 + "test_a_token_is_shortened_wherever_it_is_shown",),
    "- `repr` of a key or a document": (
        *SECRETS,
        "tests/test_errors.py::test_short_values_are_shown_and_long_ones_cut",
    ),
    "So an event's `repr`": WARNING,
    "`repr` of a page shows only": SECRETS,
    "- `repr` of `ClientConfig`": (*CONFIG, *SECRETS),
    "URLs are shown without": (
        "tests/test_errors.py::test_urls_lose_their_secrets",
        "tests/test_errors.py::test_no_value_of_an_unknown_option_is_shown",
    ),
    "A password with an unescaped": ("tests/test_errors.py::test_nothing_before_the_last_at_is_shown",),
    "- No `repr` shows `event.native`": (
        "tests/test_values.py::test_is_frozen_comparable_and_picklable_and_shows_no_secret",
        "tests/test_secrets.py::test_a_source_or_a_native_client_that_is_refused",
        "providers/mongo/tests/test_config.py::test_none_is_in_a_variable_of_a_frame",
    ),
    "- If a client cannot be made": (
        "checkpoints/tests/test_aws.py::test_a_broken_file_of_credentials_is_shown_nowhere",
        "providers/cosmos/tests/test_config.py::test_a_broken_certificate_is_shown_nowhere",
        "providers/dynamo/tests/test_provider.py::test_a_broken_file_of_credentials_is_shown_nowhere",
        "providers/spanner/tests/test_config.py::test_a_broken_key_file_is_shown_nowhere",
        "tests/test_secrets.py::test_a_file_in_another_encoding",
    ),
    "Later errors keep their frames": WARNING,
    "- Our own messages contain no secrets.": (
        *SECRETS,
        *PASSWORDS,
        "tests/test_secrets.py::test_a_url_is_no_path",
    ),
    "The text of the vendor's exception": DATA,
    "- The command line shows URLs": (
        "cli/tests/test_errors.py::test_wherever_a_url_stands_are_not_shown",
        "tables/postgres/tests/test_secrets.py::test_verify_and_the_command_line",
        "cli/tests/test_tail.py::test_the_error_of_a_partition_shows_no_secret",
    ),
    "If its output is a terminal": (
        "cli/tests/test_terminal.py::test_no_control_character_of_a_document_reaches_a_terminal",
        "cli/tests/test_terminal.py::test_no_control_character_of_an_error_reaches_a_terminal",
    ),
    "Printing documents is": FACT,
    "`docs/tests/test_security.py` names": FACT,
}


def section(name):
    return TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def sentences():
    kept = ("Credentials and TLS", "What each thing contains", "What is redacted")
    lines = [line for name in kept for line in section(name).splitlines() if not line.startswith("|")]
    for paragraph in re.split(r"\n\s*\n|\n(?=- )", "\n".join(lines)):
        words = " ".join(paragraph.split())
        yield from (each for each in re.split(r"(?<=[.:]) (?=[A-Z`*])", words) if each)


def rows():
    lines = [line for line in section("What each thing contains").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def matches(texts, entries):
    """Return the entries with the texts that begin so."""
    return {entry: [text for text in texts if text.startswith(entry)] for entry in entries}


@pytest.mark.parametrize(
    ("texts", "entries"),
    [([row[0] for row in rows()], ROWS), ([*sentences()], SENTENCES)],
    ids=["rows", "sentences"],
)
def test_each_is_listed_once(texts, entries):
    found = matches(texts, entries)
    assert {entry: len(each) for entry, each in found.items() if len(each) != 1} == {}
    listed = [text for each in found.values() for text in each]
    assert [text for text in texts if text not in listed] == []


def test_what_is_promised_has_a_test():
    missing = []
    for name, tests in {**ROWS, **SENTENCES}.items():
        for test in tests if isinstance(tests, tuple) else ():
            file, _, function = test.partition("::")
            if not re.search(rf"def {function}\(", (ROOT / file).read_text()):
                missing.append((name, test))
    assert missing == []
    assert all(len(row) == 4 for row in rows())


def test_a_mark_holds_no_key_and_no_value():
    """Its fields are facts about the feed, and names of columns and fields; all texts are the sink's."""
    from multiclouddb_tables.mark import TableMark

    assert [field.name for field in TableMark.__attrs_attrs__] == [
        "source", "columns", "incomplete_since", "declared", "unfilled", "changing", "refills",
    ]  # fmt: skip


def test_no_logger_of_a_vendor_is_changed(tmp_path):
    """Their records at DEBUG hold documents and headers, so only the application may ask for them."""
    vendors = ("azure", "boto3", "botocore", "google", "grpc", "psycopg", "pymongo", "py4j", "urllib3")
    before = {name: (logging.getLogger(name).level, [*logging.getLogger(name).handlers]) for name in vendors}
    with EmbeddedStore(tmp_path / "shop.db") as store:
        address = store.create_collection("orders")
        with connect(f"embedded://{store.path}") as client:
            client.read_changes(ChangeFeedRequest(address, Beginning()))
    assert {
        name: (logging.getLogger(name).level, [*logging.getLogger(name).handlers]) for name in vendors
    } == before
    packages = [
        path
        for path in ROOT.glob("**/multiclouddb_*/**/*.py")
        if ".venv" not in path.parts and "tools" not in path.parts and "conformance" not in path.parts
    ]
    assert len(packages) > 100
    changing = re.compile(r"\.setLevel\(|basicConfig\(|dictConfig\(")
    assert [path for path in packages if changing.search(path.read_text())] == []
