"""What the console reads about pipelines."""
