"""Datasets: from a catalog entry to decoded images.

Start with ``opening.py``. It takes the reader for the dataset's route from ``routes/``, and divides the images by a
split recipe (``splits.py``). ``routes/class_folders.py`` finds the images in folders, ``images.py`` decodes them once,
and ``class_words.py`` names classes. The ``data`` commands are in ``prepare.py`` (which downloads with ``fetching/``),
``verify.py``, ``adding.py`` and ``listing.py``; ``series.py`` notes images that belong together.
``state.py`` says which datasets are on the disk.
"""
