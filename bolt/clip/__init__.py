"""CLIP models: the image tower and its tensors, the text head, preprocessing, augmentation and checkpoint files.

Start with :class:`bolt.clip.backbone.Backbone`, a frozen CLIP. Its image tower is
:class:`bolt.clip.tower.ImageTower`; :mod:`bolt.clip.tensor_names` lists the names of the tower's tensors.
:mod:`bolt.clip.checkpoint_reading` and :mod:`bolt.clip.checkpoint_conversion` read checkpoints of other projects.
"""
