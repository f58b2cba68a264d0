"""Options of a tenant's store that is a test's bucket."""

from __future__ import annotations

from lab.s3_server import S3Server


def bucket_options(s3: S3Server) -> dict[str, str]:
    found = s3.environment
    return {
        "endpoint": found["AWS_ENDPOINT_URL"],
        "access_key_id": "test",
        "secret_access_key": "test",
        "region": "us-east-1",
        "allow_http": "true",
    }
