"""Shapes on a canvas, printed characters, aerial scenes and camera styles.

Start with ``canvas.py``, the drawing functions that the other modules share.
"""
