"""Building blocks of the methods: code that several methods share, or that would make one method's file too long.

- :mod:`.frozen_features` and :mod:`.feature_cache`: classifiers of frozen features.
- :mod:`.blend`: the classifier of LP++. :mod:`.adapters`: low-rank adapters. :mod:`.composition`: the weights of aTLAS.
- :mod:`.merging` and :mod:`.scale_selection`: merged towers and their scale. :mod:`.pooled_start`: BOLT's start.
"""
