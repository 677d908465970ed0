"""Tests of the science.

"Reference vector TVn" (or just TVn) in a test marks numbers computed with a method's official implementation, or by
hand from its paper's formula, and typed in here: an implementation that agrees with them computes what was published.
"""
