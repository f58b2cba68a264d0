"""One module per page: it reads from `jobs` and renders a template. Pages change nothing."""
