"""Programs for the developers of this project, which are not part of the installed package."""
