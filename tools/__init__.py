"""Programs for the makers of this project. The installed package does not have them."""
