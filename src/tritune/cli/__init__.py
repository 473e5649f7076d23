"""The `tritune` command: one file per subcommand. What a command does lives in the other rooms."""
