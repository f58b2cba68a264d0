"""Users' prompt templates: checked before anything runs, and rendered in a confined process."""
