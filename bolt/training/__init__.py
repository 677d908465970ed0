"""Training: one loop for all methods, the losses, the fine-tuning of source models, and meta-learning.

Start with :mod:`bolt.training.loop`, the loop itself. :mod:`bolt.training.adaptation` trains a tower on a task with it;
:mod:`bolt.training.test_time` supplies the loss on unlabelled test images. :mod:`bolt.training.finetune` makes source
models. :mod:`bolt.training.meta` meta-learns the tower from which an adaptation can start.
"""
