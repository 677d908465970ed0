"""Small helpers that do not depend on CLIP: ranges of settings, JSON, memory, the locale, installed packages."""
