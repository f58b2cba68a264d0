CREATE TABLE batch (
    id text NOT NULL,
    tenant_id text NOT NULL,
    input_file_id text NOT NULL,
    endpoint text NOT NULL,
    model text,
    completion_window text NOT NULL,
    priority text DEFAULT 'normal' NOT NULL,
    invalid_lines text DEFAULT 'fail' NOT NULL,
    metadata jsonb,
    output_expires_after_seconds bigint,
    idempotency_key text,
    fingerprint text NOT NULL,
    state text DEFAULT 'validating' NOT NULL,
    outcome text,
    errors jsonb,
    num_unlisted_errors bigint DEFAULT '0' NOT NULL,
    hinted_at timestamptz,
    num_requests bigint DEFAULT '0' NOT NULL,
    num_completed bigint DEFAULT '0' NOT NULL,
    num_failed bigint DEFAULT '0' NOT NULL,
    input_tokens bigint DEFAULT '0' NOT NULL,
    cached_tokens bigint DEFAULT '0' NOT NULL,
    output_tokens bigint DEFAULT '0' NOT NULL,
    reserved_tokens bigint DEFAULT '0' NOT NULL,
    output_file_id text,
    error_file_id text,
    created_at timestamptz DEFAULT now() NOT NULL,
    expires_at timestamptz NOT NULL,
    in_progress_at timestamptz,
    finalizing_at timestamptz,
    completed_at timestamptz,
    failed_at timestamptz,
    expired_at timestamptz,
    cancelling_at timestamptz,
    cancelled_at timestamptz,
    cost_picos numeric DEFAULT '0' NOT NULL,
    covered_tokens bigint DEFAULT '0' NOT NULL,
    waits_for_tokens bigint,
    uncovered_lines text DEFAULT 'wait' NOT NULL,
    deleted_at timestamptz,
    results_deleted_at timestamptz,
    results_purged_at timestamptz,
    rolled_up_at timestamptz,
    claim_fence bigint DEFAULT '0' NOT NULL,
    claimed_by text,
    claimed_until timestamptz,
    is_answered boolean GENERATED ALWAYS AS (num_completed + num_failed >= num_requests) STORED NOT NULL,
    api_key_id text,
    worker_microseconds bigint DEFAULT '0' NOT NULL,
    num_truncated bigint DEFAULT '0' NOT NULL,
    retry_of text,
    after_batch_id text,
    waits_for_picos numeric,
    at_risk_at timestamptz,
    cap_tokens bigint,
    cap_picos numeric,
    trace_context text,
    run_id text,
    source_file_id text,
    input_missed_at timestamptz,
    deferred_until timestamptz,
    num_computed bigint DEFAULT '0' NOT NULL,
    reading_microseconds bigint DEFAULT '0' NOT NULL,
    reading_limit_seconds bigint,
    held_by text,
    reasoning_tokens bigint DEFAULT '0' NOT NULL,
    is_growing boolean DEFAULT 'false' NOT NULL,
    name text,
    needs bigint DEFAULT '0' NOT NULL,
    engine_choice text DEFAULT 'same' NOT NULL,
    is_reproducible boolean DEFAULT 'false' NOT NULL,
    engine text,
    engine_dtype text,
    CONSTRAINT batch_pkey PRIMARY KEY (id),
    CONSTRAINT batch_tenant_id_idempotency_key_key UNIQUE (tenant_id, idempotency_key),
    CONSTRAINT batch_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT batch_input_file_id_fkey FOREIGN KEY(input_file_id) REFERENCES file (id),
    CONSTRAINT batch_output_file_id_fkey FOREIGN KEY(output_file_id) REFERENCES file (id),
    CONSTRAINT batch_error_file_id_fkey FOREIGN KEY(error_file_id) REFERENCES file (id),
    CONSTRAINT batch_state_check CHECK (
        state IN (
            'validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled'
        )
    ),
    CONSTRAINT batch_priority_check CHECK (priority IN ('urgent', 'normal', 'bulk', 'overflow')),
    CONSTRAINT batch_invalid_lines_check CHECK (invalid_lines IN ('fail', 'skip')),
    CONSTRAINT batch_uncovered_lines_check CHECK (uncovered_lines IN ('wait', 'fail')),
    CONSTRAINT batch_engine_choice_check CHECK (engine_choice IN ('same', 'any'))
) WITH (fillfactor = 70);
CREATE INDEX batch_after_idx ON batch (after_batch_id) WHERE state = 'validating' AND after_batch_id IS NOT NULL;
CREATE INDEX batch_answered_idx ON batch (id) WHERE state = 'in_progress' AND is_answered;
CREATE INDEX batch_at_risk_idx ON batch (expires_at, id)
    WHERE at_risk_at IS NOT NULL AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE INDEX batch_created_at_id_idx ON batch (created_at, id);
CREATE INDEX batch_deferred_idx ON batch (deferred_until) WHERE deferred_until IS NOT NULL;
CREATE INDEX batch_error_file_id_idx ON batch (error_file_id) WHERE error_file_id IS NOT NULL;
CREATE INDEX batch_expiry_idx ON batch (expires_at, id) WHERE state IN ('validating','in_progress');
CREATE INDEX batch_fingerprint_idx ON batch (tenant_id, fingerprint, created_at);
CREATE INDEX batch_input_file_id_idx ON batch (input_file_id);
CREATE INDEX batch_live_idx ON batch (state) WHERE state IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE INDEX batch_open_age_idx ON batch (created_at, id)
    WHERE state IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE INDEX batch_open_idx ON batch (tenant_id)
    WHERE state IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE INDEX batch_output_file_id_idx ON batch (output_file_id) WHERE output_file_id IS NOT NULL;
CREATE INDEX batch_results_kept_idx ON batch (created_at) WHERE results_deleted_at IS NULL;
CREATE INDEX batch_results_purge_idx ON batch (results_deleted_at)
    WHERE results_purged_at IS NULL AND results_deleted_at IS NOT NULL;
CREATE INDEX batch_roll_up_idx ON batch (created_at, id) WHERE rolled_up_at IS NULL;
CREATE INDEX batch_run_idx ON batch (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX batch_tenant_id_created_at_id_idx ON batch (tenant_id, created_at, id);
CREATE INDEX batch_waiting_idx ON batch (expires_at, id) WHERE waits_for_tokens IS NOT NULL;

CREATE TABLE input_count (
    id text NOT NULL,
    tenant_id text NOT NULL,
    input_file_id text NOT NULL,
    endpoint text NOT NULL,
    model text NOT NULL,
    priority text NOT NULL,
    completion_window text NOT NULL,
    state text DEFAULT 'counting' NOT NULL,
    failure text,
    created_at timestamptz DEFAULT now() NOT NULL,
    next_line bigint DEFAULT '0' NOT NULL,
    next_byte bigint DEFAULT '0' NOT NULL,
    num_requests bigint DEFAULT '0' NOT NULL,
    num_invalid bigint DEFAULT '0' NOT NULL,
    input_tokens bigint DEFAULT '0' NOT NULL,
    output_tokens bigint DEFAULT '0' NOT NULL,
    listed jsonb DEFAULT '[]' NOT NULL,
    claim_fence bigint DEFAULT '0' NOT NULL,
    claimed_until timestamptz,
    last_turn_at timestamptz,
    claimed_by text,
    CONSTRAINT input_count_pkey PRIMARY KEY (id),
    CONSTRAINT input_count_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT input_count_input_file_id_fkey FOREIGN KEY(input_file_id) REFERENCES file (id),
    CONSTRAINT input_count_state_check CHECK (state IN ('counting', 'counted', 'failed')),
    CONSTRAINT input_count_priority_check CHECK (priority IN ('urgent', 'normal', 'bulk'))
) WITH (fillfactor = 70);
CREATE INDEX input_count_created_at_idx ON input_count (created_at);
CREATE INDEX input_count_open_idx ON input_count (model) WHERE state = 'counting';
CREATE INDEX input_count_tenant_id_idx ON input_count (tenant_id);

CREATE TABLE input_segment (
    batch_id text NOT NULL,
    first_line bigint NOT NULL,
    object_key text NOT NULL,
    size_bytes bigint NOT NULL,
    CONSTRAINT input_segment_pkey PRIMARY KEY (batch_id, first_line),
    CONSTRAINT input_segment_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batch (id)
);
CREATE INDEX input_segment_object_key_idx ON input_segment (object_key);

CREATE TABLE input_digest (
    batch_id text NOT NULL,
    digest bytea NOT NULL,
    line_no bigint NOT NULL,
    CONSTRAINT input_digest_pkey PRIMARY KEY (batch_id, digest),
    CONSTRAINT input_digest_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batch (id)
);
