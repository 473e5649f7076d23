"""Golden code: hashes of generated code, which fail a test when it changes without notice.

`corpus.json.gz` has kernels as Triton's IR, so that what is lowered depends on no version of Triton
or Python; `record.py` makes it. `make golden` compares and, with UPDATE=1, writes the hashes.
"""
