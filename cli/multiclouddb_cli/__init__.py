"""The `multiclouddb` command: follow, measure and explain change feeds from a terminal.

`main` declares the commands and loads only typer; each command has its own module, which is imported when it
runs.
"""
