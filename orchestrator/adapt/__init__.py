"""``adapt``: from a folder of photographs to a model, without any test label in the choice.

Start with ``adapt_folder.py``, the recipe. It takes a finished request: ``request.py`` has read and checked the
options. ``own_images.py`` checks the images. ``trials.py`` writes a small grid with one cell for each candidate, and
measures the candidates on held-out folds. A fold is an artifact (``held_out_fold.py``), so a killed run continues.
``choice.py`` chooses a candidate and estimates its accuracy on new images. ``adaptation.py`` writes the outcome.
"""
