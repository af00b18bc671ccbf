"""A door for what users bring: their own models, data and tasks, from a recipe, the command line
or Python.
"""
