CREATE TABLE decision (
    batch_id text NOT NULL,
    kind text NOT NULL,
    subject text NOT NULL,
    num bigint NOT NULL,
    detail text,
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    CONSTRAINT decision_pkey PRIMARY KEY (batch_id, kind, subject)
) WITH (fillfactor = 70);
CREATE INDEX decision_last_at_idx ON decision USING brin (last_at);

CREATE TABLE forecast (
    batch_id text NOT NULL,
    position bigint NOT NULL,
    seconds float,
    waits_for text,
    made_at timestamptz DEFAULT now() NOT NULL,
    earliest_seconds float,
    latest_seconds float,
    told jsonb,
    CONSTRAINT forecast_pkey PRIMARY KEY (batch_id)
);

CREATE TABLE model (
    name text NOT NULL,
    path text NOT NULL,
    input_price_picos bigint DEFAULT '0' NOT NULL,
    output_price_picos bigint DEFAULT '0' NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    cached_input_price_picos bigint,
    urgent_price_percent integer DEFAULT '100' NOT NULL,
    bulk_price_percent integer DEFAULT '100' NOT NULL,
    checked_at timestamptz,
    serves text DEFAULT 'generate' NOT NULL,
    embedding jsonb,
    tokenizer jsonb,
    CONSTRAINT model_pkey PRIMARY KEY (name)
);

CREATE TABLE plot_mark (
    id smallint DEFAULT '1' NOT NULL,
    ledger_id bigint NOT NULL,
    CONSTRAINT plot_mark_pkey PRIMARY KEY (id),
    CONSTRAINT plot_mark_id_check CHECK (id = 1)
);

CREATE TABLE plot_point (
    name text NOT NULL,
    label text NOT NULL,
    tenant_id text NOT NULL,
    seconds integer NOT NULL,
    at timestamptz NOT NULL,
    value double precision NOT NULL,
    CONSTRAINT plot_point_pkey PRIMARY KEY (name, label, tenant_id, seconds, at)
);
CREATE INDEX plot_point_seconds_at_idx ON plot_point (seconds, at);

CREATE TABLE queue_count (
    id smallint DEFAULT '1' NOT NULL,
    numbers jsonb NOT NULL,
    counted_at timestamptz NOT NULL,
    CONSTRAINT queue_count_pkey PRIMARY KEY (id),
    CONSTRAINT queue_count_id_check CHECK (id = 1)
);

CREATE TABLE served_engine (
    model text NOT NULL,
    kind text NOT NULL,
    version text NOT NULL,
    meets bigint NOT NULL,
    may_meet bigint NOT NULL,
    findings jsonb DEFAULT '{}' NOT NULL,
    probe_tokens bigint DEFAULT '0' NOT NULL,
    probed_at timestamptz,
    due_at timestamptz,
    prober_id text,
    probed_until timestamptz,
    seen_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT served_engine_pkey PRIMARY KEY (model, kind, version)
);

CREATE TABLE serving_rate (
    model text NOT NULL,
    tokens_per_second float,
    token_ratio float NOT NULL,
    counters jsonb NOT NULL,
    is_saturated boolean NOT NULL,
    measured_at timestamptz NOT NULL,
    CONSTRAINT serving_rate_pkey PRIMARY KEY (model)
);

CREATE TABLE worker (
    id text NOT NULL,
    model text NOT NULL,
    hostname text NOT NULL,
    pid integer NOT NULL,
    max_chunks integer NOT NULL,
    max_model_len integer NOT NULL,
    engine_stats jsonb,
    started_at timestamptz DEFAULT now() NOT NULL,
    heartbeat_at timestamptz DEFAULT now() NOT NULL,
    stopped_at timestamptz,
    draining_at timestamptz,
    running_lines jsonb DEFAULT '{}' NOT NULL,
    engine text DEFAULT 'tokenmill' NOT NULL,
    engine_version text,
    engine_dtype text,
    meets bigint DEFAULT '0' NOT NULL,
    num_tokens bigint DEFAULT '0' NOT NULL,
    speed jsonb,
    CONSTRAINT worker_pkey PRIMARY KEY (id)
);
CREATE INDEX worker_live_idx ON worker (model) WHERE stopped_at IS NULL;

CREATE TABLE fair_share (
    model text NOT NULL,
    priority text NOT NULL,
    tenant_id text NOT NULL,
    virtual_time float DEFAULT '0' NOT NULL,
    served_at timestamptz,
    waiting_since timestamptz,
    marked_at timestamptz,
    CONSTRAINT fair_share_pkey PRIMARY KEY (model, priority, tenant_id),
    CONSTRAINT fair_share_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id)
);
CREATE INDEX fair_share_age_idx ON fair_share (model, priority, waiting_since) WHERE waiting_since IS NOT NULL;
CREATE INDEX fair_share_turn_idx ON fair_share (model, priority, virtual_time, tenant_id)
    WHERE waiting_since IS NOT NULL;
