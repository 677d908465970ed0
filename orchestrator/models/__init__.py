"""Models in and out: checkpoints of others adopted, backbones brought, finished cells exported and served."""
