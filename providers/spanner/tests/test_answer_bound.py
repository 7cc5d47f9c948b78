"""Tests that a message has at most 64 MiB, on the wire and after gRPC has decompressed it."""

from concurrent import futures

import grpc
import pytest

from multiclouddb_spanner.config import ALIVE
from multiclouddb_spanner.errors import classify


class Handler(grpc.GenericRpcHandler):
    def __init__(self, nbytes, compression):
        self.nbytes, self.compression = nbytes, compression

    def service(self, details):
        def answer(request, context):
            context.set_compression(self.compression)
            yield bytes(self.nbytes)

        return grpc.unary_stream_rpc_method_handler(answer)


@pytest.fixture(params=[grpc.Compression.NoCompression, grpc.Compression.Gzip])
def call(request):
    """Return a function that asks a server for a message of so many bytes."""
    server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.max_send_message_length", -1)])
    handler = Handler(0, request.param)
    server.add_generic_rpc_handlers([handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    def made(nbytes):
        handler.nbytes = nbytes
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=list(ALIVE)) as channel:
            return [len(each) for each in channel.unary_stream("/any/call")(b"")]

    yield made
    server.stop(None).wait()


def test_a_message_of_many_values_arrives(call):
    assert call(60 << 20) == [60 << 20]


def test_a_message_that_the_service_never_sends_is_refused(call):
    with pytest.raises(grpc.RpcError) as refused:
        call((64 << 20) + 1)
    fault = classify(refused.value)
    assert (fault.category, fault.retryable) == ("PROVIDER_ERROR", False)
    assert "something else answers" in fault.message
