"""Learning from a store which winners carry over to problems that were not tuned."""
