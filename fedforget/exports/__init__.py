"""A merged update in the forms that others load: a delta, a whole model, a low-rank adapter."""
