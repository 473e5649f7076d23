"""The public ops, registered with torch. Each computes its problem, gets a config and launches."""
