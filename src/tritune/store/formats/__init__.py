"""Other tools' files of tuning results, one format per file: read from them and write to them."""
