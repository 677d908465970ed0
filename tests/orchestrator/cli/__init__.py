"""Tests of the command line: the project file and what commands remember."""
