"""Building blocks of the methods: code that several methods share, or that would make one method's file too long.

- :mod:`.frozen_features` reads frozen features and trains classifiers of them. :mod:`.feature_cache` is the cache of
  Tip-Adapter. :mod:`.blend` is the classifier of LP++.
- :mod:`.cross_validation` holds out images of the support. :mod:`.candidates` scores other methods on such images.
- :mod:`.adapters` attaches low-rank adapters to a tower. :mod:`.reparametrised` trains other changes of its matrices.
- :mod:`.composition` makes the weights of a network from task vectors, for aTLAS and AdaMerging.
- :mod:`.merging` adds merged task vectors to a tower, at a scale that :mod:`.scale_selection` chooses.
- :mod:`.prompts` trains the text side. :mod:`.coop_training` has the optimisers and learning rates of CoOp's code.
"""
