"""The web page, `holdfast web`: jobs in a browser, told what is new by the supervisors' own streams."""
