"""What architectures and devices are and have. Nothing here compiles or runs a kernel."""
