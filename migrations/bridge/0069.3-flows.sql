-- Runs, extractions, indexes and the lookups of passages for batches become flows. No claim is carried over: code of before can no longer write under one.

INSERT INTO flow (id, tenant_id, recipe, state, reason, lane, api_key_id, idempotency_key, created_at, ended_at, claim_fence,
        look_at, num_tries)
    SELECT id, tenant_id, 'run', state, reason, pipeline_id, api_key_id, idempotency_key, created_at, ended_at, claim_fence,
        look_at, num_tries FROM run;
INSERT INTO flow (id, tenant_id, recipe, state, reason, api_key_id, idempotency_key, fingerprint, created_at, ended_at,
        claim_fence, look_at, num_tries)
    SELECT id, tenant_id, 'extraction', state, reason, api_key_id, idempotency_key, fingerprint, created_at, ended_at,
        claim_fence, look_at, num_tries FROM extraction;
INSERT INTO flow (id, tenant_id, recipe, state, reason, api_key_id, idempotency_key, fingerprint, created_at, ended_at,
        claim_fence, look_at, num_tries)
    SELECT id, tenant_id, 'index', state, reason, api_key_id, idempotency_key, fingerprint, created_at, ended_at,
        claim_fence, look_at, num_tries FROM passage_index;

INSERT INTO flow_node (flow_id, number, recipe, name, batch_id, num_lines, begun_at, done_at)
    SELECT run_step.run_id, step_no, 'run', run_step.name, batch_id, coalesce(batch.num_requests, 0),
        coalesce(run_step.prepared_at, run.created_at), done_at
    FROM run_step JOIN run ON run.id = run_step.run_id LEFT JOIN batch ON batch.id = batch_id;
INSERT INTO flow_node (flow_id, number, recipe, name, batch_id, num_lines, begun_at, done_at)
    SELECT extraction_id, number + CASE WHEN name LIKE '%_covered' THEN 1000000 ELSE 0 END, 'extraction', name, batch_id, num_lines, begun_at, done_at FROM extraction_stage;
INSERT INTO flow_node (flow_id, number, recipe, name, batch_id, num_lines, begun_at, done_at)
    SELECT passage_index_id, number, 'index', (ARRAY['read', 'cut', 'embed', 'embed_again'])[number + 1], batch_id,
        num_lines, begun_at, done_at
    FROM passage_index_stage;

-- A batch that waits for its lookups goes on with those that were begun; what an ended one has left open is cancelled.
ALTER TABLE batch ADD COLUMN held_by text;
CREATE TABLE passage_fill (
    id text NOT NULL,
    models text[] DEFAULT '{}' NOT NULL,
    CONSTRAINT passage_fill_pkey PRIMARY KEY (id),
    CONSTRAINT passage_fill_id_fkey FOREIGN KEY(id) REFERENCES flow (id) ON DELETE CASCADE
);
INSERT INTO flow (id, tenant_id, recipe, state, api_key_id, created_at, ended_at, for_batch_id)
    SELECT 'fill_' || substr(batch.id, 7), batch.tenant_id, 'fill', filled.state, batch.api_key_id, stages.begun_at,
        CASE WHEN filled.state IN ('completed', 'cancelled') THEN now() END, batch.id
    FROM (
        SELECT batch_stage.batch_id, min(stage.created_at) AS begun_at,
            bool_or(stage.state IN ('validating', 'in_progress', 'finalizing', 'cancelling')) AS is_any_open
        FROM batch_stage JOIN batch AS stage ON stage.id = stage_batch_id GROUP BY 1
    ) AS stages JOIN batch ON batch.id = stages.batch_id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN source_file_id IS NOT NULL THEN 'completed' WHEN batch.state = 'validating' THEN 'in_progress'
            WHEN is_any_open THEN 'cancelling' ELSE 'cancelled' END AS state
    ) AS filled;
INSERT INTO passage_fill (id, models)
    SELECT flow.id, coalesce(array_agg(model ORDER BY number) FILTER (WHERE kind = 'embed'), '{}')
    FROM flow JOIN batch_stage ON batch_id = for_batch_id GROUP BY 1;
INSERT INTO flow_node (flow_id, number, recipe, name, batch_id, num_lines, begun_at, done_at)
    SELECT flow.id, number, 'fill', kind, stage_batch_id, stage.num_requests, stage.created_at, flow.ended_at
    FROM flow JOIN batch_stage ON batch_stage.batch_id = for_batch_id JOIN batch AS stage ON stage.id = stage_batch_id;
UPDATE batch SET held_by = flow.id FROM flow WHERE for_batch_id = batch.id AND flow.state = 'in_progress';

DROP TABLE batch_stage;
DROP TABLE extraction_stage;
DROP TABLE passage_index_stage;

ALTER TABLE run_step DROP CONSTRAINT run_step_run_id_fkey, DROP COLUMN name, DROP COLUMN batch_id, DROP COLUMN prepared_at,
    DROP COLUMN done_at;
ALTER TABLE run_step RENAME COLUMN run_id TO flow_id;
ALTER TABLE run_step RENAME COLUMN step_no TO number;
ALTER TABLE run_step ADD CONSTRAINT run_step_flow_id_number_fkey FOREIGN KEY(flow_id, number)
    REFERENCES flow_node (flow_id, number) ON DELETE CASCADE;

ALTER TABLE run DROP COLUMN tenant_id, DROP COLUMN state, DROP COLUMN reason, DROP COLUMN api_key_id,
    DROP COLUMN idempotency_key, DROP COLUMN created_at, DROP COLUMN ended_at, DROP COLUMN claim_fence,
    DROP COLUMN claimed_by, DROP COLUMN claimed_until, DROP COLUMN look_at, DROP COLUMN num_tries,
    ADD CONSTRAINT run_id_fkey FOREIGN KEY(id) REFERENCES flow (id) ON DELETE CASCADE;
CREATE INDEX run_pipeline_id_id_idx ON run (pipeline_id, id);
ALTER TABLE extraction DROP COLUMN tenant_id, DROP COLUMN state, DROP COLUMN reason, DROP COLUMN api_key_id,
    DROP COLUMN idempotency_key, DROP COLUMN fingerprint, DROP COLUMN created_at, DROP COLUMN ended_at,
    DROP COLUMN claim_fence, DROP COLUMN claimed_by, DROP COLUMN claimed_until, DROP COLUMN look_at,
    DROP COLUMN num_tries,
    ADD CONSTRAINT extraction_id_fkey FOREIGN KEY(id) REFERENCES flow (id) ON DELETE CASCADE;
ALTER TABLE passage_index DROP COLUMN tenant_id, DROP COLUMN state, DROP COLUMN reason, DROP COLUMN api_key_id,
    DROP COLUMN idempotency_key, DROP COLUMN fingerprint, DROP COLUMN created_at, DROP COLUMN ended_at,
    DROP COLUMN claim_fence, DROP COLUMN claimed_by, DROP COLUMN claimed_until, DROP COLUMN look_at,
    DROP COLUMN num_tries,
    ADD CONSTRAINT passage_index_id_fkey FOREIGN KEY(id) REFERENCES flow (id) ON DELETE CASCADE;
-- Where the server names what keeps a column from being null, it is named as of a new table.
DO $do$
    DECLARE
        kept record;
    BEGIN
        FOR kept IN SELECT conname FROM pg_constraint
            WHERE conrelid = 'run_step'::regclass AND conname IN ('run_step_run_id_not_null', 'run_step_step_no_not_null')
        LOOP
            EXECUTE format(
                'ALTER TABLE run_step RENAME CONSTRAINT %I TO %I', kept.conname,
                replace(replace(kept.conname, 'run_id', 'flow_id'), 'step_no', 'number')
            );
        END LOOP;
    END
$do$;
