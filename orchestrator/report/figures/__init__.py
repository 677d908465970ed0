"""Figures: each module draws one kind from a study; ``drawing`` has what all of them share."""
