"""Finished models: adapting a backbone to images, predicting labels, saving and loading models.

Start with :func:`bolt.model.api.adapt`, which returns a :class:`bolt.model.model.Model`. :mod:`bolt.model.saving`
writes a model to a folder and :mod:`bolt.model.loading` reads it back.
"""
