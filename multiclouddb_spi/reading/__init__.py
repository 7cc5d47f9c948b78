"""Reads one page from many partitions at once.

`filling` decides which partition is read next, how long a call waits, and where the page is cut. `answers`
applies ends, losses and failures. `page_builder` makes the page or the error. `unchanged` returns the last
page again while nothing can have changed.
"""
