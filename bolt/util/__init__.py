"""Small helpers that know nothing of CLIP: ranges of settings, JSON, memory, the locale, packages from outside."""
