"""The `tritune` command: one file per subcommand. The work is done by the other rooms."""
