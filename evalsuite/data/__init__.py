"""A user's data: files, folders, tables, text, or what a function makes."""
