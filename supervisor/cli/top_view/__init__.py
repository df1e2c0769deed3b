"""The live view, `holdfast top`: jobs and ranks on a terminal, refreshed continuously."""
