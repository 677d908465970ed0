"""CLIP models: both towers and their tensors, the text head, preprocessing, augmentation and checkpoint files.

Start with :class:`bolt.clip.backbone.Backbone`, a frozen CLIP. Its towers are an :class:`bolt.clip.tower.ImageTower`
and a :class:`bolt.clip.text_tower.TextTower`. :mod:`bolt.clip.tensor_names` has the names of the image tower's tensors.
:mod:`bolt.clip.checkpoint_reading` and :mod:`bolt.clip.checkpoint_conversion` read checkpoints of other projects.
"""
