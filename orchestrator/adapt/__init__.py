"""``adapt``: from a folder of photographs to a model, without any test label in the choice.

``adapt_folder.py`` is the recipe. ``request.py`` checks the options, ``own_images.py`` the folder. ``candidates.py``
makes the candidates the cells of a small grid, and ``trials.py`` measures them on held-out folds
(``held_out_fold.py``, a kind of artifact, so that a killed run continues). ``choice.py`` chooses and says what accuracy
to expect, and ``adaptation.py`` writes what came out.
"""
