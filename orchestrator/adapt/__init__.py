"""``adapt``: from a folder of photographs to a model, without any test label in the choice.

Start with ``adapt_folder.py``, which takes the steps in order. ``request.py`` checks the options, ``own_images.py`` the
folder. ``trials.py`` measures candidates on held-out folds (``held_out_fold.py``, a kind of artifact, so that a killed
run continues), ``choice.py`` chooses and says what accuracy to expect, and ``adaptation.py`` writes the page.
"""
