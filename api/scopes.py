"""Which scope a key needs for each operation: the one place that says so, for the door and for /openapi.json.

Knows no key; a route that stands in neither table is not served.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.routing import BaseRoute

from jobs.states import Scope

OPEN = frozenset({"isAlive", "isReady", "readMetrics"})
"""Operations that ask for no key, but for TOKENMILL_API_OPERATOR_KEY where `api.middleware.guard` says so."""

_READ = (
    *("listFiles", "retrieveFile", "downloadFile", "readTable", "retrieveUpload"),
    *("listBatches", "retrieveBatch", "listResults", "listDecisions", "streamBatch", "retrieveEstimate"),
    *("listPipelines", "retrievePipeline", "listSchedules", "retrieveSchedule", "listRuns", "retrieveRun"),
    *("listCollections", "retrieveCollection", "listDocuments", "retrieveDocument", "retrievePageImage"),
    "retrieveDocumentText",
    *("listExtractions", "retrieveExtraction", "listRecords", "listReviews", "summariseReviews", "listGold"),
    *("listItems", "evaluateExtraction"),
    *("listIndexes", "retrieveIndex", "searchIndex"),  # which asks for submit where a model embeds the question
    *("listWebhookEndpoints", "retrieveWebhookEndpoint", "listWebhookDeliveries", "listWebhookEventTypes"),
    *("listModels", "retrieveModel", "readUsage", "readQuota"),
    *("listSessions", "endSession", "endSessions"),  # the key's own: who may sign in may sign out
)
_SUBMIT = (  # what changes something, and what has the service work: estimates and previews
    *("createFile", "deleteFile", "createRequests", "createUpload", "addUploadPart", "completeUpload", "cancelUpload"),
    *("createBatch", "changeBatch", "retryBatch", "cancelBatch", "deleteBatch", "createEstimate"),
    *("createPipeline", "changePipeline", "deletePipeline", "previewPipeline"),
    *("createSchedule", "changeSchedule", "deleteSchedule", "pauseSchedule", "resumeSchedule", "backfillSchedule"),
    *("createRun", "cancelRun", "resumeRun", "deleteRun"),
    *("createCollection", "deleteCollection", "addDocuments", "deleteDocument"),
    *("createExtraction", "cancelExtraction", "deleteExtraction", "calibrateExtraction"),
    *("claimReviews", "decideReview", "changeItem"),
    *("createIndex", "deleteIndex"),
    *("createWebhookEndpoint", "updateWebhookEndpoint", "deleteWebhookEndpoint", "rotateWebhookSecret"),
    *("testWebhookEndpoint", "replayWebhookDelivery"),
)
_ADMIN = (
    *("listTenants", "createTenant", "retrieveTenant", "changeTenant", "disableTenant", "enableTenant", "deleteTenant"),
    *("listOperatorKeys", "createOperatorKey", "listKeys", "createKey", "rotateKey", "revokeKey"),
    *("listAllSessions", "endAllSessions", "endAnySession", "endSessionsOfKey"),
    *("listBudgets", "setBudget", "removeBudget", "listKnownModels", "addModel", "setPrices", "removeModel"),
    *("listWorkers", "drainWorker", "resumeWorker", "readAdminLog"),
)
SCOPES: Mapping[str, Scope] = {
    **dict.fromkeys(_READ, Scope.READ),
    **dict.fromkeys(_SUBMIT, Scope.SUBMIT),
    **dict.fromkeys(_ADMIN, Scope.ADMIN),
}
"""By operation id."""


def scope_of(route: BaseRoute) -> Scope | None:
    """Return the scope that a route needs, None where it is open. Raises LookupError where nobody has said."""
    name = str(getattr(route, "operation_id", None) or getattr(route, "name", ""))
    if name in OPEN:
        return None
    if name not in SCOPES:
        raise LookupError(f"the route {name!r} has no scope: say in api/scopes.py which one a key needs for it")
    return SCOPES[name]
