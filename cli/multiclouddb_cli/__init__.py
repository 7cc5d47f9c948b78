"""The `multiclouddb` command: follow, measure and explain change feeds from a terminal.

`main` declares the commands and loads nothing but typer; each command has a module of its own that
is imported when it runs.
"""
