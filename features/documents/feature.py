"""The parts of the feature `documents`."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="documents",
    settings="features.documents.settings:DocumentSettings",
    tables=("features.documents.tables",),
    routers=(
        "features.documents.http.collections:router",
        "features.documents.http.documents:router",
        "features.documents.http.document_texts:router",
        "features.documents.http.page_images:router",
        "features.documents.http.reviewed:router",
        "features.documents.http.items:router",
        "features.documents.http.reviews:router",
        "features.documents.http.evaluations:router",
        "features.documents.http.creating:router",
        "features.documents.http.extractions:router",
    ),
    bodies=("features.documents.http.creating:CreateExtractionBody",),
    lines=("features.documents.schemas.extractions:RecordLine", "features.documents.schemas.reviews:GoldLine"),
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
            "Extract the fields of a schema from documents, with the place of each value.",
        ),
        Command(
            "extractions",
            "features.documents.commands:app",
            Section.SERVER,
            "Extractions on a server: fields from collections of documents.",
        ),
    ),
    templates="features.documents",
    pages=(
        "features.documents.pages.extractions:router",
        "features.documents.pages.evaluation:router",
        "features.documents.pages.documents:router",
    ),
    menu=(MenuEntry("/extractions", "Extraction"),),
    recipes=("features.documents.work:make_recipe",),
    meters={"prepare": "workers.preparing.meters:PREPARE"},
    purges=("features.documents.deletion:purges",),
)
