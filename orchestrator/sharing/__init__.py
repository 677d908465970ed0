"""Results for other programs and people: data frames, merged stores, and bundles that anybody can check.

``frames.py`` gives results, predictions and verdicts to Python code. ``merge.py`` copies results from another store.
``bundle.py`` writes a grid's results and tables into one file and reads such files. ``verify.py`` checks a bundle, and
``rerun.py`` measures some of its cells again. ``grid_listing.py`` lists a grid's cells without expanding the grid.
"""
