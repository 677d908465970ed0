"""Small helpers that know nothing of CLIP or of methods: JSON, memory, the locale, and packages installed beside."""
