"""Building blocks of the methods: code that several methods share, or that would make one method's file too long.

- :mod:`.frozen_features` reads and classifies frozen features. :mod:`.feature_cache` is the cache of Tip-Adapter.
  :mod:`.blend` is the classifier of LP++.
- :mod:`.adapters` attaches low-rank adapters to a tower.
- :mod:`.composition` makes the weights of a network from task vectors, for aTLAS.
- :mod:`.merging` adds merged task vectors to a tower, at a scale that :mod:`.scale_selection` chooses.
- :mod:`.pooled_start` is BOLT's training-free start.
"""
