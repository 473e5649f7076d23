"""Compiling configs in parallel: the pool, the service in its workers, and facts about binaries."""
