"""Programs that measure a real GPU, its host or its links."""
