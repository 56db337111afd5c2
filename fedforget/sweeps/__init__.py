"""A stored run merged again under other settings, compared at matched forgetting, and studied."""
