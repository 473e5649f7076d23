"""Worker processes: how they start, answer, fail and are shared, and the lock on a device."""
