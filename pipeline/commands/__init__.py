"""The commands of `mmgrpo`: one file each, with its help, its arguments and what it does.

What a file imports at its top is loaded by `mmgrpo --help`: keep it light.
"""
