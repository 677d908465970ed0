"""Import models into the benchmark, and export models from it.

Start with ``adoption.py``, which adopts fine-tuned checkpoints as sources, and with ``export.py``, which saves the
model of a finished cell. ``backbone_entry.py`` adds a CLIP to a catalog file, ``stored_sources.py`` lists and copies
sources, ``find_result.py`` finds a finished cell, and ``inspection.py`` examines it.
"""
