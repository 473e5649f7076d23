"""Problems of ops: parsed from text, listed for a model, or gathered into suites."""
