"""Writes docs/configuration.md from the tables in supervisor/config."""

from pathlib import Path

from supervisor.config.reference_docs import configuration_page

Path(__file__).with_name("configuration.md").write_text(configuration_page())
