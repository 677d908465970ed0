"""What is said while a grid runs: counts and an estimate, on the terminal, in plain lines, and to other shells."""
