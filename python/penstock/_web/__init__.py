"""Everything that the web adapters share. Imports no framework."""
