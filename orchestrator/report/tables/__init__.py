"""Tables: each module makes one kind from a study.

``table`` is the data structure; ``formats`` and ``latex`` print it.
"""
