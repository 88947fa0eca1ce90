"""What the demo is made of: the stage it speaks from, the crowd of clients, the thief, the page."""
