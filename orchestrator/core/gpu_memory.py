"""Names and constants of GPU memory: cells measure it, and planning packs cells by it."""

CONTEXT_MIB = 600.0
"""GPU memory of each process in addition to torch's, in MiB: CUDA's context, its libraries' code and workspaces. This
is an assumption and is printed as one, because it depends on the GPU and the driver."""

RESERVED_MEMORY = "reserved_memory_mib"
"""Key in a result's details: the most memory that torch reserved on an accelerator, in MiB."""
