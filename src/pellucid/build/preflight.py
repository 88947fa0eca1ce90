"""What would stand in a build's way: every finding at once, before anything is built."""
