"""What the drawn world shows: shapes on a canvas, printed characters, aerial scenes, clothes, hands, camera styles.

Start with ``canvas.py``, the drawing functions that the other modules share.
"""
