"""The rows of a service that has been busy for a month, as SQL that derives them from numbers: the same in each run.

Batch 0 is the newest. Of the newest quarter four in five are open. Every thousandth is large.
"""

from __future__ import annotations

MADE = """
    CREATE TEMP TABLE made AS
    SELECT n, 'batch_' || md5('batch ' || n) AS id, 'file-' || md5('file ' || n) AS file_id, state,
        (CAST(:tenants AS text[]))[1 + (n + n / 20) % cardinality(CAST(:tenants AS text[]))] AS tenant_id,
        CASE WHEN state <> 'failed' THEN (CAST(:models AS text[]))[1 + n / 3 % 4] END AS model,
        (ARRAY['urgent', 'normal', 'normal', 'bulk'])[1 + n / 7 % 4] AS priority,
        now() - interval '1 second' * n - interval '29 days' * power(n / CAST(:batches AS float8), 2) AS created_at,
        num_lines, num_done, num_done / 10 * CAST(n % 10 IN (4, 7) AS int) AS num_failed
    FROM generate_series(0, :batches - 1) AS n
    CROSS JOIN LATERAL (SELECT n < :batches / 4 AND n % 5 > 0 AS is_open) AS drawn
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN is_open THEN coalesce((ARRAY['validating', 'finalizing', 'cancelling'])[n % 20], 'in_progress')
            ELSE coalesce((ARRAY['failed', 'expired', 'cancelled'])[n / 5 % 20], 'completed')
        END AS state
    ) AS stated
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN state IN ('failed', 'validating') THEN 0
            WHEN n = 7 THEN :largest
            WHEN n % 1000 = 7 THEN :lines * 50
            ELSE :lines
        END AS num_lines
    ) AS sized
    CROSS JOIN LATERAL (
        SELECT CASE WHEN state <> 'in_progress' THEN num_lines WHEN n % 3 = 0 THEN 0 ELSE num_lines / 2 END AS num_done
    ) AS done
"""
FILES = """
    INSERT INTO file (id, tenant_id, object_key, filename, purpose, size_bytes, num_requests, created_at)
    SELECT file_id, tenant_id, file_id, 'input.jsonl', 'batch', num_lines * 500, num_lines, created_at FROM made
"""
BATCHES = """
    INSERT INTO batch (id, tenant_id, input_file_id, endpoint, model, completion_window, priority, fingerprint, state,
        num_requests, num_completed, num_failed, input_tokens, cached_tokens, output_tokens, reserved_tokens,
        created_at, expires_at, in_progress_at, completed_at, failed_at, expired_at, cancelled_at, at_risk_at)
    SELECT id, tenant_id, file_id, '/v1/chat/completions', model, '24h', priority, id, state,
        num_lines, num_done - num_failed, num_failed, num_done * 200, num_done * 50, num_done * 100,
        CASE WHEN state = 'in_progress' THEN (num_lines - num_done) * 300 ELSE 0 END,
        created_at, created_at + interval '1 day', CASE WHEN model IS NOT NULL THEN created_at END,
        CASE WHEN state = 'completed' THEN created_at + interval '1 hour' END,
        CASE WHEN state = 'failed' THEN created_at + interval '1 minute' END,
        CASE WHEN state = 'expired' THEN created_at + interval '1 day' END,
        CASE WHEN state = 'cancelled' THEN created_at + interval '2 hours' END,
        CASE WHEN state = 'in_progress' AND n % 50 = 6 THEN created_at END
    FROM made
"""
CHUNKS = """
    INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
        byte_start, byte_end, estimated_tokens, fence, state, worker_id, lease_until)
    SELECT id, tenant_id, model, priority, created_at + interval '1 day', first, size, size,
        first * 500, (first + size) * 500, size * 300, 1, stated.state,
        CASE WHEN stated.state = 'leased' THEN 'worker_' || n % :workers END,
        CASE WHEN stated.state = 'leased' THEN now() + interval '1 hour' END
    FROM made CROSS JOIN LATERAL generate_series(0, num_lines - 1, 5) AS first
    CROSS JOIN LATERAL (SELECT least(5, num_lines - first) AS size) AS sized
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN made.state <> 'in_progress' OR first + size <= num_done THEN 'done'
            WHEN first <= num_done AND n % 3 > 0 THEN 'leased'
            ELSE 'ready'
        END AS state
    ) AS stated
"""
RESULTS = """
    INSERT INTO result (batch_day, batch_id, line_no, result_no, status_code, is_error, input_tokens, cached_tokens,
        output_tokens, line)
    SELECT CAST(created_at AT TIME ZONE 'UTC' AS date), id, line_no, line_no + 1,
        CASE WHEN has_failed THEN 400 ELSE 200 END, has_failed, 200, 50, 100,
        convert_to(CAST(jsonb_build_object('custom_id', 'line-' || line_no, 'response', jsonb_build_object(
            'status_code', CASE WHEN has_failed THEN 400 ELSE 200 END,
            'body', CASE
                WHEN has_failed THEN jsonb_build_object('error', jsonb_build_object(
                    'code', (ARRAY['context_length_exceeded', 'invalid_value', 'invalid_json'])[1 + line_no % 3],
                    'message', 'Its messages have 9,000 tokens; this model reads 4,096. ' || repeat('x', 100)))
                ELSE jsonb_build_object('content', repeat('an answer of some words ', 8))
            END
        )) AS text), 'UTF8')
    FROM made CROSS JOIN LATERAL generate_series(0, num_done - 1) AS line_no
    CROSS JOIN LATERAL (SELECT line_no < num_failed AS has_failed) AS judged
"""
LEDGER = """
    INSERT INTO ledger (tenant_id, batch_id, chunk_id, fence, flush_no, model, num_results, input_tokens,
        cached_tokens, output_tokens, cost_picos, input_price_picos, output_price_picos, priority, num_truncated,
        created_at)
    SELECT chunk.tenant_id, chunk.batch_id, chunk.id, 1, 0, chunk.model, chunk.num_lines, chunk.num_lines * 200,
        chunk.num_lines * 50, chunk.num_lines * 100, chunk.num_lines * 400000000, 1000000, 2000000, chunk.priority, 0,
        made.created_at
    FROM chunk JOIN made ON made.id = chunk.batch_id WHERE chunk.state = 'done'
"""
BUDGETS = """
    UPDATE budget SET spent_tokens = (SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM ledger
            WHERE ledger.tenant_id = budget.tenant_id),
        reserved_tokens = (SELECT coalesce(sum(reserved_tokens), 0) FROM batch WHERE batch.tenant_id = budget.tenant_id)
"""
DECISIONS = """
    INSERT INTO decision (batch_id, kind, subject, num, first_at, last_at)
    SELECT id, 'claimed', 'worker_' || number, 3, created_at, created_at
    FROM made CROSS JOIN generate_series(1, 5) AS number WHERE n % 20 = 7
"""
WORKERS = """
    INSERT INTO worker (id, model, hostname, pid, max_chunks, max_model_len, engine_stats, started_at, heartbeat_at)
    SELECT 'worker_' || n, (CAST(:models AS text[]))[1 + n % 4], 'gpu-' || n / 8, 1000 + n, 8, 8192,
        CAST(:stats AS jsonb), now() - interval '1 hour' * n,
        now() - CASE WHEN n % 25 = 24 THEN interval '10 minutes' ELSE interval '0' END
    FROM generate_series(0, :workers - 1) AS n
"""
FORECASTS = """
    INSERT INTO forecast (batch_id, position, seconds)
    SELECT id, n / 2, 60 + n FROM made WHERE state = 'in_progress'
"""
PIPELINES = """
    INSERT INTO pipeline (id, tenant_id, name, definition)
    SELECT 'pipe_' || tenant_id || number, tenant_id, 'nightly ' || number, CAST(:definition AS json)
    FROM unnest(CAST(:tenants AS text[])) AS tenant_id CROSS JOIN generate_series(1, 3) AS number
"""
SCHEDULES = """
    INSERT INTO schedule (id, tenant_id, pipeline_id, name, cron, time_zone, catch_up_seconds, next_at, due_at,
        num_failures)
    SELECT 'sched_' || id, tenant_id, id, name, '0 2 * * *', 'UTC', 86400, now() + interval '5 hours',
        now() + interval '5 hours', CASE WHEN name LIKE '% 3' THEN 1 ELSE 0 END
    FROM pipeline
"""
RUNS = """
    WITH new AS (
        SELECT 'run_' || pipeline.id || '_' || number AS id, pipeline.tenant_id, pipeline.id AS pipeline_id,
            schedule.id AS schedule_id, number, day, pipeline.definition
        FROM pipeline JOIN schedule ON schedule.pipeline_id = pipeline.id
        CROSS JOIN generate_series(0, :runs - 1) AS number
        CROSS JOIN LATERAL (SELECT now() - interval '1 day' * number AS day) AS of_day
    ), flows AS (
        INSERT INTO flow (id, tenant_id, recipe, state, lane, created_at, ended_at)
        SELECT id, tenant_id, 'run', CASE WHEN number % 10 = 1 THEN 'failed' ELSE 'succeeded' END, pipeline_id, day, day
        FROM new
    )
    INSERT INTO run (id, pipeline_id, schedule_id, kind, scheduled_for, interval_start, interval_end, definition,
        started_at)
    SELECT id, pipeline_id, schedule_id, 'cron', day, day, day, definition, day FROM new
"""
RUN_STEPS = """
    WITH steps AS (
        INSERT INTO flow_node (flow_id, number, recipe, name, batch_id, num_lines, begun_at, done_at)
        SELECT flow.id, 0, recipe, 'ask', latest.id, 100, flow.created_at, flow.ended_at
        FROM flow JOIN LATERAL (SELECT id FROM made WHERE made.tenant_id = flow.tenant_id LIMIT 1) AS latest ON TRUE
        WHERE recipe = 'run' RETURNING flow_id, number
    )
    INSERT INTO run_step (flow_id, number, num_rows) SELECT flow_id, number, 100 FROM steps
"""
COLLECTIONS = """
    INSERT INTO collection (id, tenant_id, name)
    SELECT 'coll_' || tenant_id, tenant_id, 'papers' FROM unnest(CAST(:tenants AS text[])) AS tenant_id
"""
EXTRACTIONS = """
    WITH new AS (
        SELECT 'extr_' || tenant_id || '_' || number AS id, tenant_id, id AS collection_id, number
        FROM collection CROSS JOIN generate_series(1, :extractions) AS number
    ), flows AS (
        INSERT INTO flow (id, tenant_id, recipe, state, fingerprint, created_at, ended_at)
        SELECT id, tenant_id, 'extraction', CASE WHEN number > 2 THEN 'completed' ELSE 'in_progress' END, '',
            now() - interval '1 hour' * number, CASE WHEN number > 2 THEN now() - interval '1 minute' * number END
        FROM new
    )
    INSERT INTO extraction (id, collection_id, model, plan, again, parquet, priority, completion_window, expires_at,
        num_documents, num_done, num_to_review)
    SELECT id, collection_id, :model, CAST(:plan AS jsonb), FALSE, FALSE, 'normal', '24h', now() + interval '1 day',
        100, 90, 25
    FROM new
"""
STAGES = """
    INSERT INTO flow_node (flow_id, number, recipe, name, batch_id, num_lines, done_at)
    SELECT flow.id, number, recipe, (ARRAY['read', 'ask', 'ground'])[number + 1], made.id, 100, flow.ended_at
    FROM (SELECT *, row_number() OVER (PARTITION BY tenant_id ORDER BY id) AS place
        FROM flow WHERE recipe = 'extraction') AS flow
    CROSS JOIN generate_series(0, 2) AS number
    JOIN (SELECT id, tenant_id, row_number() OVER (PARTITION BY tenant_id ORDER BY n) AS place FROM made) AS made
        ON made.tenant_id = flow.tenant_id AND made.place = flow.place * 3 + number
"""
INDEXES = """
    WITH new AS (
        SELECT 'index_' || tenant_id || '_' || number AS id, tenant_id, id AS collection_id, number
        FROM collection CROSS JOIN generate_series(1, :indexes) AS number
    ), flows AS (
        INSERT INTO flow (id, tenant_id, recipe, state, fingerprint, created_at, ended_at)
        SELECT id, tenant_id, 'index', CASE WHEN number > 2 THEN 'completed' ELSE 'in_progress' END, '',
            now() - interval '1 hour' * number, CASE WHEN number > 2 THEN now() - interval '1 minute' * number END
        FROM new
    )
    INSERT INTO passage_index (id, collection_id, name, max_tokens, overlap_tokens, language, priority,
        completion_window, expires_at, num_documents, num_indexed)
    SELECT id, collection_id, 'papers ' || number, 256, 32, 'simple', 'normal', '24h', now() + interval '1 day', 100, 90
    FROM new
"""
INDEX_STAGES = """
    INSERT INTO flow_node (flow_id, number, recipe, name, batch_id, num_lines, done_at)
    SELECT flow.id, 0, recipe, 'read', made.id, 100, flow.ended_at
    FROM (SELECT *, row_number() OVER (PARTITION BY tenant_id ORDER BY id) AS place
        FROM flow WHERE recipe = 'index') AS flow
    JOIN (SELECT id, tenant_id, row_number() OVER (PARTITION BY tenant_id ORDER BY n) AS place FROM made) AS made
        USING (tenant_id, place)
"""
REVIEWS = """
    INSERT INTO review (id, extraction_id, tenant_id, document_id, document, path, place, reason, urgency, evidence,
        verdict, is_right, decided_by, decided_at)
    SELECT 'rev_' || extraction.id || '_' || number, extraction.id, tenant_id, 'doc_' || number, 'paper.pdf', 'total',
        '["total"]', CASE WHEN number % 5 = 0 THEN 'sample' ELSE 'doubt' END, number / 25.0, '{"value": 1}',
        CASE WHEN number % 2 = 0 THEN 'accept' END, CASE WHEN number % 2 = 0 THEN TRUE END,
        CASE WHEN number % 2 = 0 THEN 'key' END, CASE WHEN number % 2 = 0 THEN now() END
    FROM flow AS extraction CROSS JOIN generate_series(1, 25) AS number
    WHERE recipe = 'extraction' AND state = 'completed'
"""
# Each tenant used two models in every hour, and in one of three minutes.
POINTS = """
    INSERT INTO plot_point (name, label, tenant_id, seconds, at, value)
    SELECT name, model, tenant_id, seconds, at, 1000 + number
    FROM unnest(CAST(:tenants AS text[])) WITH ORDINALITY AS tenant (tenant_id, place)
    CROSS JOIN LATERAL (VALUES (1 + place % 4), (1 + (place + 1) % 4)) AS used (which)
    CROSS JOIN LATERAL (SELECT (CAST(:models AS text[]))[which] AS model) AS named
    CROSS JOIN unnest(ARRAY['input_tokens', 'output_tokens', 'cost']) AS name
    CROSS JOIN LATERAL (
        SELECT 60 AS seconds, number, date_trunc('minute', now()) - interval '3 minutes' * number
                - interval '1 minute' * (place % 3) AS at
        FROM generate_series(0, least(:hours, 25) * 20 - 1) AS number
        UNION ALL
        SELECT 3600, number, date_trunc('hour', now()) - interval '1 hour' * number
        FROM generate_series(0, :hours - 1) AS number
        UNION ALL
        SELECT 86400, number, date_trunc('day', now()) - interval '1 day' * number
        FROM generate_series(0, :hours / 24) AS number
    ) AS pointed
"""
POINTS_TOGETHER = """
    INSERT INTO plot_point (name, label, tenant_id, seconds, at, value)
    SELECT 'total_' || name, label, '', seconds, at, sum(value) FROM plot_point GROUP BY name, label, seconds, at
"""
POINTS_OF_ALL = """
    INSERT INTO plot_point (name, label, tenant_id, seconds, at, value)
    SELECT name, label, '', seconds, at, 5
    FROM (
        SELECT 'queued_lines' AS name, unnest(ARRAY['urgent', 'normal', 'bulk']) AS label
        UNION ALL
        SELECT unnest(ARRAY['running_requests', 'cache_use']), model FROM unnest(CAST(:models AS text[])) AS model
    ) AS plotted
    CROSS JOIN LATERAL (
        SELECT 60 AS seconds, date_trunc('minute', now()) - interval '1 minute' * number AS at
        FROM generate_series(0, least(:hours, 25) * 60 - 1) AS number
        UNION ALL
        SELECT 3600, date_trunc('hour', now()) - interval '1 hour' * number
        FROM generate_series(0, :hours - 1) AS number
    ) AS pointed
"""
PLOT_MARK = "INSERT INTO plot_mark (id, ledger_id) SELECT 1, coalesce(max(id), 0) FROM ledger"
ADMIN_LOG = """
    INSERT INTO admin_log (actor, action, subject)
    SELECT 'user:bench', 'tenant.changed', 'tenant ' || n FROM generate_series(1, 500) AS n
"""

ROWS = (
    MADE, FILES, BATCHES, CHUNKS, RESULTS, LEDGER, BUDGETS, DECISIONS, WORKERS, FORECASTS, PIPELINES, SCHEDULES, RUNS,
    RUN_STEPS, COLLECTIONS, EXTRACTIONS, STAGES, INDEXES, INDEX_STAGES, REVIEWS, POINTS, POINTS_TOGETHER, POINTS_OF_ALL,
    PLOT_MARK, ADMIN_LOG,
)  # fmt: skip
"""In an order that satisfies every foreign key."""
