"""The `multiclouddb` command follows, measures and explains change feeds from a terminal.

`main` declares the commands and imports only typer; each command has its own module, which is imported when
the command runs.
"""
