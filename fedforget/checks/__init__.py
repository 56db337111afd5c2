"""What a configuration can get wrong, found before anything runs; :mod:`fedforget.checks.run` gathers it."""
