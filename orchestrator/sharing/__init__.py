"""Results leave and enter the project here: tables for Python, stores merged, and bundles that anybody can check.

``frames.py`` gives results, predictions and verdicts to Python code. ``merge.py`` takes another store's results over.
``bundle.py`` writes everything behind a grid's tables into one file and reads it; ``verify.py`` checks such a file, and
``rerun.py`` measures some of its cells again.
"""
