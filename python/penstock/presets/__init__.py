"""Names of limits as known systems number them, to be handed to `Limits.load` as `names`."""
