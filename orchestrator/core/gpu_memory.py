"""Constants of GPU memory. Cells measure their GPU memory, and planning uses it to pack cells on a GPU."""

CONTEXT_MIB = 600.0
"""Assumed GPU memory of a process outside of torch's allocator, in MiB: CUDA's context, libraries and workspaces. The
real number depends on the GPU and the driver, so plans print this number as an assumption."""

RESERVED_MEMORY = "reserved_memory_mib"
"""Key in a result's details: the most memory that torch reserved on an accelerator, in MiB."""
