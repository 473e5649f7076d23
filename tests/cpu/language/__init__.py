"""One file per part of the Triton language; every operation against numpy, torch or Triton's interpreter."""
