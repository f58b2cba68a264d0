"""The parts of the feature files."""

from __future__ import annotations

from features.feature import Command, Feature, Scopes, Section

FEATURE = Feature(
    name="files",
    routers=("api.files.routes:router", "api.part_uploads.routes:router"),
    scopes=Scopes(
        read=("listFiles", "retrieveFile", "downloadFile", "retrieveUpload"),
        submit=(
            *("createFile", "createFiles", "deleteFile"),
            *("createUpload", "addUploadPart", "completeUpload", "cancelUpload"),
        ),
    ),
    commands=(
        Command(
            "files",
            "cli.file_commands:app",
            Section.SERVER,
            "Upload, list, download and delete files on a running server.",
        ),
    ),
)
