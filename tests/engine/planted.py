"""Plants defects in what a client keeps of its consumers between two calls."""

from multiclouddb_spi import FeedSpec
from multiclouddb_spi.calls import Calls
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.interrupts import Renewed


def kept_after_an_interrupt(monkeypatch):
    """The consumer of an interrupted call is put back as if nothing had happened."""

    def spared(self, call, *args):
        try:
            return call(self.kept, *args)
        except KeyboardInterrupt:
            consumers = self.kept.consumers
            for each in list(consumers._used):
                consumers.release(each)
            raise

    monkeypatch.setattr(Renewed, "use", spared)


def taken_for_another_request(monkeypatch):
    """A feed and its consumers are used for a request that asks for more."""

    def place(spec):
        return spec.address, spec.scope

    monkeypatch.setattr(FeedSpec, "__eq__", lambda self, other: place(self) == place(other))
    monkeypatch.setattr(FeedSpec, "__hash__", lambda self: hash(place(self)))


def not_rewound(monkeypatch):
    """After an error, the state counts as that of the request's token."""
    used = Calls._used

    def kept(self, consumer, *rest):
        token = consumer.token
        try:
            return used(self, consumer, *rest)
        except Exception:
            consumer.token = token
            raise

    monkeypatch.setattr(Calls, "_used", kept)


def adopted_wherever_it_stands(monkeypatch):
    """A reader is taken over although it is at another position."""
    adopt = Consumer.adopt

    def blindly(self, other):
        for name, stream in other.streams.items():
            entry = self.state.reading(name)
            if entry is not None:
                stream.cursor = entry.said[0]
        adopt(self, other)

    monkeypatch.setattr(Consumer, "adopt", blindly)
