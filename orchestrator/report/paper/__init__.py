"""The paper's own numbers (``published``) and its tables, with measured accuracies beside them (``paper_tables``).

Start with ``published.py``.
"""
