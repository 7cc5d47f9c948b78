"""A collection of the embedded store for the lives of `testing.model_lives`."""

from unittest.mock import patch

from multiclouddb_api import Beginning, connect
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_embedded.feed import EmbeddedFeed


class EmbeddedSource:
    """The collection; its documents have one of `values` in turn."""

    start = Beginning()
    odd_names = (
        "", " ", "a b", 'say "x"', "back\\slash", "line\nend", "é", "e\u0301", "\u2028", "😀", "{}", "'", "%",
        "~",
    )  # fmt: skip

    def __init__(self, folder, values):
        self.values, self.store = values, EmbeddedStore(folder / "shop.db", durable=False)
        self.client = connect(f"embedded://{self.store.path}")
        self.address = self.store.create_collection("orders", partitions=2)
        # Nobody writes while somebody reads, so no transaction of another writer has to be waited for.
        self._hastened = patch.object(EmbeddedFeed, "visible_after", return_value=0.0)
        self._hastened.start()

    def close(self):
        self._hastened.stop()
        self.client.close()
        self.store.close()

    def key(self, name):
        return {"id": name}

    def write(self, name, number):
        document = {"n": number, "v": self.values[number % len(self.values)]}
        self.store.put("orders", name, document)
        return document

    def remove(self, name):
        self.store.delete("orders", name)

    def recreate(self):
        self.store.drop_collection("orders")
        self.store.create_collection("orders", partitions=2)

    def tick(self):
        pass  # the store has the clock of this machine
