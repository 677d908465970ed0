"""Datasets: from a catalog entry to decoded images.

Start with ``opening.py``: it reads a dataset by its route (a reader in ``routes/``) and divides it (``splits.py``).
``routes/class_folders.py`` finds the images in folders, ``images.py`` decodes images once, ``class_words.py`` names
classes. The ``data`` commands are ``prepare.py`` (downloads with ``fetching/``), ``verify.py``, ``adding.py`` and
``listing.py``. ``state.py`` says which datasets are on the disk.
"""
