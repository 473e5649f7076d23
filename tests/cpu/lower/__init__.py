"""Tests of `cpu/lower`."""
