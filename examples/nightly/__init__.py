"""A pipeline that reads the documents of the day and sums by vendor. Needs a running `tokenmill up`."""
