"""The science of the benchmark: tensors in, tensors out.

Nothing in here knows a path, a config file, a tracker or a cluster.
"""
