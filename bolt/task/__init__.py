"""The input and the output of an adaptation method.

Start with :mod:`bolt.task.task`: a method maps a :class:`bolt.task.task.Task` to an :class:`bolt.task.task.Adapted`.
:mod:`bolt.task.support` draws the labelled images, :mod:`bolt.task.classifiers` holds the classifiers that can be
saved, and :mod:`bolt.task.scoring` computes predictions and accuracy on a test split.
"""
