"""Runs the conformance suite over TLS."""

import pytest

from multiclouddb_certify.suites.cosmos import *  # noqa: F403

from .harness import CosmosHarness

pytestmark = [
    pytest.mark.usefixtures("hasty"),
    # For localhost, azure-cosmos does not verify a certificate, and urllib3 warns about this for each
    # request.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

FORM = {"TestPropagation": "requests and answers are the same as without TLS, once a connection exists"}


class HttpsHarness(CosmosHarness):
    """A harness whose server has its own certificate, which azure-cosmos accepts on this machine."""

    https = True


HARNESS = HttpsHarness
