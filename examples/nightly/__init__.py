"""A pipeline that reads the documents of the day and sums them up by vendor. Needs a running `tokenmill up`."""
