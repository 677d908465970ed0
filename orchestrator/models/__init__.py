"""Import models into the benchmark, and export models from it.

Start with ``adoption.py``, which adopts fine-tuned checkpoints as sources, and with ``export.py``, which saves the
model of a finished cell with the card of ``model_card.py``. ``backbone_entry.py`` makes the catalog entry of a CLIP,
``stored_sources.py`` lists and copies sources, ``find_result.py`` finds the result of a cell, and ``inspection.py``
examines a finished cell.
"""
