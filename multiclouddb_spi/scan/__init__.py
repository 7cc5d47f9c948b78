"""Scans a collection for `Snapshot()`: every existing row, then every change.

The provider implements how its service scans a collection. The engine does the rest: the order of scan and
stream, the token, the rate, the notices, and the end of the scan. A provider supports snapshots if its feeds
implement `SupportsSnapshot` and its capabilities name `Capability.CHANGE_FEED_SNAPSHOT`.

`contract` defines what a provider implements in addition to its feed. `start` makes the plan of a scan.
`scanning` reads the segments of the plan in one call, and `step` reads them in a bounded read. A token
contains the plan as an entry (`continuation.entry`), and `continuation.lineage` decides which partitions wait
for the scan.

- *Plan.* `snapshot` resolves the start of the stream **first**, then makes the plan of the scan: what all
  rows have in common (`Scan`: an id, a floor, a moment, and what the provider shares), and a rest, which
  represents the part of the collection that is not yet divided into segments.
- *Segments.* `segments` takes the next segments from a plan. A segment is a part of the collection's keys,
  and is read like a partition: the engine calls `Feed.open_segment` and fetches from the reader. About eight
  segments are active at the same time, so a plan of 32,000 segments is never listed as a whole. Each key is
  in exactly one segment of a plan.
- *Databases.* The scan of a database reads one collection after the other, in an order that other processes
  know too, such as that of their names. The rest of the plan names the collection that is divided, and the
  provider lists the following ones again each time, so a token never contains all of them. Each segment
  names its collection, and so does the `View` of its reader. A collection that is dropped meanwhile has no
  rows any more, so its segments end with `Scanned`, and the scan goes on with the others. All rows of one
  that is created meanwhile are in the stream, so it need not be scanned.
- *Cursors.* The engine writes and reads the cursor of a segment (`multiclouddb_spi.segment`). It contains
  everything that a reader needs: the scan, and as texts of the provider the last key that was read and the
  end of the segment. The texts keep their meaning in any process, for days, even if the service splits or
  moves the collection's partitions. A read can resume after any row. No method of a feed but `open_segment`
  gets a position in a segment: such positions cannot be compared, have no time, and do not expire.
- *Ids.* The id of a segment is made from the scan's id and the segment's name; it never equals the id of a
  partition. `plan_id_of` returns the scan's id for a segment's id, and None for a partition's id.
- *Rows.* A row that exists when `snapshot` returns, and is not changed or deleted afterwards, is returned at
  least once. Retries, splits, repeated divisions of the plan and lost tokens do not change that. If a row is
  changed in the meantime, the scan may return the old row, the new row, or no row, because the stream
  contains every such change. A provider's `RowMapper` only says what it found. `multiclouddb_spi.rows` makes
  the event: `type=CREATE`, `backfilled=True`, `old_item_state=None`, `by_expiry=False`, `timestamp` = the
  scan's moment, an `event_id` of the scan's id and a digest of the key, `order_key` = the floor, and
  `partition_id` = the public id of the segment.
- *Floor.* The floor is the `order_key` of every row. It is never empty. The floor is greater than the
  `order_key` of every change that the scan certainly includes, and less than the `order_key` of every change
  that is committed after `snapshot` has returned. If the service's `order_key` is not known before the stream
  is read, no such floor exists. The provider then returns a floor below the `order_key` of every change, and
  the capability's note says so.
- *Stream.* The start positions lie at or before the floor, so every change after the floor is read from the
  stream. The stream may return a change although the scan has already returned the changed row.
- *End.* A segment ends with the outcome `Scanned`, on the batch with its last row or on an empty batch. A
  segment never ends with `Drained` or `Awaiting`. It ends with `Ended` and a notice only if the only
  collection of the feed is dropped. If it is better to read the rest of a segment in pieces (for example,
  because its keys are now on several nodes), the segment ends with `Scanned(pieces)`. The pieces contain the
  unread rest of the segment, and no key of another segment.
- *Batches of a segment.* `caught_up` is False while more rows follow. `watermark` and `headroom` are None.
  `charge` is the cost of the scan; `Snapshot.max_scan_rate` limits the charge, or the rows if `charge` is
  None.
- *Rate.* The engine limits the rate: one fetch from a segment requests at most the rows for about one second,
  and the engine waits between the fetches. A provider neither limits the rate nor counts rows.
- *Errors.* The engine retries failed calls of these methods, as it does for all other methods. If a plan can
  no longer be continued (because the service refuses its positions), the call raises `CHECKPOINT_EXPIRED`.
"""
