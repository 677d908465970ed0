"""What cells measure of a GPU's memory, and planning packs them by."""

CONTEXT_MIB = 600.0
"""Memory that each process takes of a GPU beside torch's own: CUDA's context, its libraries' code and workspaces. An
assumption, printed as one: it depends on the GPU and the driver."""

RESERVED_MEMORY = "reserved_memory_mib"
"""The entry in a result's details for the most memory that torch reserved on an accelerator, in MiB."""
