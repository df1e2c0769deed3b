"""The attribution service: why did each cycle of a job end? A process of its own, asked over HTTP."""
