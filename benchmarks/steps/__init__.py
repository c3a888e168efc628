"""Training steps on made-up clips, timed in turns: shapes of a recipe, variants, models."""
