"""The parts of the feature documents."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="documents",
    tables=("jobs.tables.extractions",),
    routers=(
        "api.extractions.collections:router",
        "api.extractions.documents:router",
        "api.extractions.document_texts:router",
        "api.extractions.page_images:router",
        "api.extractions.reviewed:router",
        "api.extractions.items:router",
        "api.extractions.reviews:router",
        "api.extractions.evaluations:router",
        "api.extractions.creating:router",
        "api.extractions.extractions:router",
    ),
    bodies=("api.extractions.creating:CreateExtractionBody",),
    lines=("api.schemas.extractions:RecordLine", "api.schemas.reviews:GoldLine"),
    scopes=Scopes(
        read=(
            *("listCollections", "retrieveCollection", "listDocuments", "retrieveDocument", "retrievePageImage"),
            "retrieveDocumentText",
            *("listExtractions", "retrieveExtraction", "listRecords", "listReviews", "summariseReviews", "listGold"),
            *("listItems", "evaluateExtraction"),
        ),
        submit=(
            *("createCollection", "deleteCollection", "addDocuments", "deleteDocument"),
            *("createExtraction", "cancelExtraction", "deleteExtraction", "calibrateExtraction"),
            *("claimReviews", "decideReview", "changeItem"),
        ),
    ),
    commands=(
        Command(
            "extract",
            "cli.extracting.group:app",
            Section.MACHINE,
            "Find the fields of a schema in documents, and where each value stands.",
        ),
        Command(
            "extractions",
            "cli.extractions.commands:app",
            Section.SERVER,
            "Extractions on a server: fields of collections.",
        ),
    ),
    pages=(
        "api.dashboard.pages.extractions:router",
        "api.dashboard.pages.evaluation:router",
        "api.dashboard.pages.documents:router",
    ),
    menu=(MenuEntry("/extractions", "Extraction"),),
    control=("workers.turns.extractions:WORK",),
    meters={"prepare": "workers.preparing.meters:PREPARE"},
    purges=("jobs.extractions.deletion:purges",),
)
