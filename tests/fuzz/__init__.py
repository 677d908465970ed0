"""Inputs that nobody writes on purpose: a clear error or a correct outcome, no traceback, no wrong skip."""
