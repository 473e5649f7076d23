"""The functions people call, registered with torch. Each works out its problem, asks for a config
and launches.
"""
