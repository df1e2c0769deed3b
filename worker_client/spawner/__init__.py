"""The fork server of one job: starts, reaps, signals and kills its workers, and pumps their output."""
