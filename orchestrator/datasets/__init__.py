"""Datasets: from a catalog entry to decoded images.

``opening`` opens a dataset by its route (``routes``), ``splits`` divides it, ``images`` decodes it once. The ``data``
commands are ``prepare`` (downloads, in ``fetching``), ``verify``, ``adding`` and ``listing``. ``state`` says what is on
the disk.
"""
