"""Old names of what scripts import from elsewhere in this package."""
