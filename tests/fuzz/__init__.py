"""Property-based tests of damaged and unusual input: a clear error or a correct outcome, never a traceback."""
