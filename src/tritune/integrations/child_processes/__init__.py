"""A folder for PYTHONPATH: how Python processes that a program starts inherit the integrations."""
