"""The stores that operators register: folders of this machine and buckets."""
