"""One file per part of the language; every operation against numpy, torch or the interpreter."""
