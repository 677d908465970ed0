"""Models in and out of the benchmark.

In: ``adoption`` takes fine-tuned checkpoints as sources (``hub`` fetches them), ``backbone_entry`` adds a CLIP to a
catalog file, ``source_table`` lists the sources.
Out: ``export`` saves a finished cell's model, ``inspection`` looks into it.
"""
