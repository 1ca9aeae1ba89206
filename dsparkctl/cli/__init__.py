"""The operator's commands: one file a group of commands; each parses, calls and renders.

`app` knows the commands by name and loads one only when it is called; `render` alone prints.
"""
