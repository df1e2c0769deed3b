"""The web page, `holdfast web`: jobs in a browser, kept up to date by the supervisors' own streams."""
