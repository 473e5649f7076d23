"""The libraries that ops are compared with, and their calls for the same inputs."""
