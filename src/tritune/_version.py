"""The version, and the range of Triton it works with; packaging and the program both read these."""

__version__ = "0.1.0.dev0"

#: The first supported release of Triton, and the first that is too new, as (major, minor).
TRITON_SUPPORTED = ((3, 7), (3, 10))
