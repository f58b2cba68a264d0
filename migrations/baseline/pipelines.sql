CREATE TABLE pipeline (
    id text NOT NULL,
    tenant_id text NOT NULL,
    name text NOT NULL,
    definition json NOT NULL,
    version bigint DEFAULT '1' NOT NULL,
    api_key_id text,
    created_at timestamptz DEFAULT now() NOT NULL,
    updated_at timestamptz DEFAULT now() NOT NULL,
    deleted_at timestamptz,
    CONSTRAINT pipeline_pkey PRIMARY KEY (id),
    CONSTRAINT pipeline_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id)
);
CREATE INDEX pipeline_tenant_id_created_at_id_idx ON pipeline (tenant_id, created_at, id);
CREATE UNIQUE INDEX pipeline_name_idx ON pipeline (tenant_id, name) WHERE deleted_at IS NULL;

CREATE TABLE store (
    id text NOT NULL,
    tenant_id text NOT NULL,
    name text NOT NULL,
    url text NOT NULL,
    options jsonb NOT NULL,
    is_writable boolean NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    deleted_at timestamptz,
    CONSTRAINT store_pkey PRIMARY KEY (id),
    CONSTRAINT store_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id)
);
CREATE UNIQUE INDEX store_name_idx ON store (tenant_id, name) WHERE deleted_at IS NULL;

CREATE TABLE schedule (
    id text NOT NULL,
    tenant_id text NOT NULL,
    pipeline_id text NOT NULL,
    name text NOT NULL,
    cron text NOT NULL,
    time_zone text NOT NULL,
    starts_at timestamptz,
    ends_at timestamptz,
    jitter_seconds integer DEFAULT '0' NOT NULL,
    overlap text DEFAULT 'skip' NOT NULL,
    catch_up text DEFAULT 'latest' NOT NULL,
    catch_up_seconds bigint NOT NULL,
    max_failures integer,
    next_at timestamptz,
    due_at timestamptz,
    paused_at timestamptz,
    pause_reason text,
    num_failures integer DEFAULT '0' NOT NULL,
    num_skipped integer DEFAULT '0' NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    updated_at timestamptz DEFAULT now() NOT NULL,
    deleted_at timestamptz,
    late_after_seconds integer,
    CONSTRAINT schedule_pkey PRIMARY KEY (id),
    CONSTRAINT schedule_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT schedule_pipeline_id_fkey FOREIGN KEY(pipeline_id) REFERENCES pipeline (id),
    CONSTRAINT schedule_overlap_check CHECK (overlap IN ('skip', 'queue_one', 'queue_all', 'cancel_running')),
    CONSTRAINT schedule_catch_up_check CHECK (catch_up IN ('none', 'latest', 'all'))
);
CREATE INDEX schedule_due_idx ON schedule (due_at)
    WHERE due_at IS NOT NULL AND paused_at IS NULL AND deleted_at IS NULL;
CREATE INDEX schedule_pipeline_id_idx ON schedule (pipeline_id);
CREATE INDEX schedule_tenant_id_created_at_id_idx ON schedule (tenant_id, created_at, id);
CREATE UNIQUE INDEX schedule_name_idx ON schedule (tenant_id, name) WHERE deleted_at IS NULL;

CREATE TABLE run (
    id text NOT NULL,
    pipeline_id text NOT NULL,
    schedule_id text,
    kind text NOT NULL,
    scheduled_for timestamptz NOT NULL,
    interval_start timestamptz NOT NULL,
    interval_end timestamptz NOT NULL,
    num_missed integer DEFAULT '1' NOT NULL,
    definition json,
    started_at timestamptz,
    late_at timestamptz,
    error_code text,
    CONSTRAINT run_pkey PRIMARY KEY (id),
    CONSTRAINT run_id_fkey FOREIGN KEY(id) REFERENCES flow (id) ON DELETE CASCADE,
    CONSTRAINT run_once_key UNIQUE (schedule_id, scheduled_for, kind),
    CONSTRAINT run_pipeline_id_fkey FOREIGN KEY(pipeline_id) REFERENCES pipeline (id),
    CONSTRAINT run_schedule_id_fkey FOREIGN KEY(schedule_id) REFERENCES schedule (id),
    CONSTRAINT run_kind_check CHECK (kind IN ('cron', 'manual', 'backfill'))
) WITH (fillfactor = 70);
CREATE INDEX run_pipeline_id_id_idx ON run (pipeline_id, id);

CREATE TABLE dataset_file (
    pipeline_id text NOT NULL,
    step text NOT NULL,
    key text NOT NULL,
    version text NOT NULL,
    size_bytes bigint NOT NULL,
    run_id text,
    done_at timestamptz,
    CONSTRAINT dataset_file_pkey PRIMARY KEY (pipeline_id, step, key, version),
    CONSTRAINT dataset_file_pipeline_id_fkey FOREIGN KEY(pipeline_id) REFERENCES pipeline (id),
    CONSTRAINT dataset_file_run_id_fkey FOREIGN KEY(run_id) REFERENCES run (id)
);
CREATE INDEX dataset_file_run_id_idx ON dataset_file (run_id);

CREATE TABLE run_step (
    flow_id text NOT NULL,
    number integer NOT NULL,
    rows_file_id text,
    num_rows bigint DEFAULT '0' NOT NULL,
    num_failed bigint DEFAULT '0' NOT NULL,
    published jsonb,
    row_schema bytea,
    cpu_seconds double precision DEFAULT '0' NOT NULL,
    CONSTRAINT run_step_pkey PRIMARY KEY (flow_id, number),
    CONSTRAINT run_step_flow_id_number_fkey FOREIGN KEY(flow_id, number) REFERENCES flow_node (flow_id, number)
        ON DELETE CASCADE,
    CONSTRAINT run_step_rows_file_id_fkey FOREIGN KEY(rows_file_id) REFERENCES file (id)
);
