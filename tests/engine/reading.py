"""Writes, reads of planned ranges, and feeds whose readers fetch through a test."""

from functools import partial

from multiclouddb_spi import read_range


def write(sim, count, keys=10**6):
    """Change `count` keys in turn, of which there are at most `keys`; return the ids of the events."""
    return [sim.write(f"k{number % keys}", {"n": number}).event_id for number in range(count)]


def events_of(provider, feed, parts, on_expired=None):
    """Yield the events of ranges, in their order."""
    for part in parts:
        for batch in read_range(provider, feed, part, on_expired):
            yield from batch.events(0, len(batch))


class Through:
    """A feed whose readers fetch through a function, which gets the reader's own `fetch` first."""

    def __init__(self, feed, through):
        self._feed, self._through = feed, through

    def for_one_call(self):
        return self

    def __getattr__(self, name):
        return getattr(self._feed, name)

    def open(self, *place):
        reader = self._feed.open(*place)
        reader.fetch = partial(self._through, reader.fetch)
        return reader


class Asked(Through):
    """A feed that records what each fetch of its readers requests."""

    def __init__(self, feed):
        super().__init__(feed, self._note)
        self.asked = []

    def _note(self, fetch, most, nbytes, wait, deadline):
        self.asked.append((most, nbytes, wait, deadline.remaining()))
        return fetch(most, nbytes, wait, deadline)
