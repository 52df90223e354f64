"""The lines of the user's files to change for a recommendation: `edits`."""
