"""The tests, laid out as the package they check."""
