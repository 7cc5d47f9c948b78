"""Runs moto's server, which simulates DynamoDB on a machine without npm.

The streams of moto have one shard that never rolls over and never expires, so the server is useful only for a
smoke test. moto's mock without a server does not know the host names that boto3 uses for streams.
"""

from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer

from .server import Server


class MotoDynamo(Server):
    """A moto server in a thread of this process, on a free port; a start deletes earlier data."""

    def __init__(self) -> None:
        """Start the server. When the call returns, the server is listening."""
        self._server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        super().__init__(f"http://{host}:{port}")
        # Data in moto belongs to the process, not to the server.
        urlopen(Request(f"{self.endpoint_url}/moto-api/reset", method="POST")).close()

    def close(self) -> None:
        """Stop the server and its thread."""
        super().close()
        self._server.stop()
