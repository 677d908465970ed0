"""Statistics that name the best methods: pure functions on numbers, without a store or a report.

Start with ``best_set``, which compares methods over datasets, and ``comparison``, the record that it returns.
``one_dataset`` makes the same record from the test images of a single dataset. ``recommendation`` names the cheapest of
the best methods in one sentence. ``verdict`` is the record that pages, the terminal and ``verdict.json`` share.
"""
