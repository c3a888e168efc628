"""Starting the processes of a run: where they meet, how they start, and how they end."""
