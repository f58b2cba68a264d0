CREATE TABLE browser_session (
    id text NOT NULL,
    token_hash text NOT NULL,
    principal_kind text NOT NULL,
    principal_id text NOT NULL,
    key_hash text,
    created_at timestamptz DEFAULT now() NOT NULL,
    last_seen_at timestamptz DEFAULT now() NOT NULL,
    expires_at timestamptz NOT NULL,
    user_agent text NOT NULL,
    CONSTRAINT browser_session_pkey PRIMARY KEY (id),
    CONSTRAINT browser_session_token_hash_key UNIQUE (token_hash),
    CONSTRAINT browser_session_principal_kind_check CHECK (principal_kind IN ('key'))
);
CREATE INDEX browser_session_principal_id_idx ON browser_session (principal_id);

CREATE TABLE tenant (
    id text NOT NULL,
    name text NOT NULL,
    weight float DEFAULT '1' NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    max_open_batches bigint,
    max_enqueued_tokens bigint,
    max_files bigint,
    max_stored_bytes bigint,
    max_requests_per_minute bigint,
    max_tokens_per_minute bigint,
    max_uploads bigint,
    max_downloads bigint,
    deleted_at timestamptz,
    retention_days integer,
    best_priority text DEFAULT 'urgent' NOT NULL,
    max_urgent_tokens bigint,
    may_overflow boolean DEFAULT 'false' NOT NULL,
    disabled_at timestamptz,
    enabled_at timestamptz,
    max_reading_seconds_per_day bigint,
    max_bytes_per_minute bigint,
    CONSTRAINT tenant_pkey PRIMARY KEY (id),
    CONSTRAINT tenant_name_key UNIQUE (name),
    CONSTRAINT tenant_weight_check CHECK (weight > 0),
    CONSTRAINT tenant_best_priority_check CHECK (best_priority IN ('urgent', 'normal', 'bulk'))
);
CREATE INDEX tenant_never_urgent_idx ON tenant (id) WHERE max_urgent_tokens = 0;

CREATE TABLE api_key (
    id text NOT NULL,
    tenant_id text,
    key_hash text NOT NULL,
    hint text NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    revoked_at timestamptz,
    scopes text[] NOT NULL,
    name text,
    expires_at timestamptz,
    last_used_at timestamptz,
    previous_hash text,
    previous_until timestamptz,
    CONSTRAINT api_key_pkey PRIMARY KEY (id),
    CONSTRAINT api_key_key_hash_key UNIQUE (key_hash),
    CONSTRAINT api_key_previous_hash_key UNIQUE (previous_hash),
    CONSTRAINT api_key_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT api_key_scopes_check CHECK (
        CASE WHEN tenant_id IS NULL THEN scopes = '{admin}'
            ELSE scopes <@ '{submit,read}' AND cardinality(scopes) > 0 END
    )
);
CREATE INDEX api_key_tenant_id_idx ON api_key (tenant_id);

CREATE TABLE budget (
    tenant_id text NOT NULL,
    limit_tokens bigint,
    reserved_tokens bigint DEFAULT '0' NOT NULL,
    spent_tokens bigint DEFAULT '0' NOT NULL,
    refused_lines bigint DEFAULT '0' NOT NULL,
    refused_bytes bigint DEFAULT '0' NOT NULL,
    committed_tokens bigint DEFAULT '0' NOT NULL,
    num_window_budgets integer DEFAULT '0' NOT NULL,
    overflow_spent_tokens bigint DEFAULT '0' NOT NULL,
    reading_day date,
    reading_microseconds bigint DEFAULT '0' NOT NULL,
    CONSTRAINT budget_pkey PRIMARY KEY (tenant_id),
    CONSTRAINT budget_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT budget_reserved_check CHECK (reserved_tokens >= 0),
    CONSTRAINT budget_spent_check CHECK (spent_tokens >= 0)
) WITH (fillfactor = 50);

CREATE TABLE window_budget (
    id text NOT NULL,
    tenant_id text NOT NULL,
    api_key_id text,
    unit text NOT NULL,
    window_kind text NOT NULL,
    time_zone text NOT NULL,
    limit_amount numeric NOT NULL,
    warn_percent integer,
    window_start timestamptz,
    window_end timestamptz,
    spent_amount numeric DEFAULT '0' NOT NULL,
    committed_amount numeric DEFAULT '0' NOT NULL,
    warned_at timestamptz,
    created_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT window_budget_pkey PRIMARY KEY (id),
    CONSTRAINT window_budget_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT window_budget_api_key_id_fkey FOREIGN KEY(api_key_id) REFERENCES api_key (id),
    CONSTRAINT window_budget_unit_check CHECK (unit IN ('tokens', 'money')),
    CONSTRAINT window_budget_window_kind_check CHECK (window_kind IN ('day', 'month', 'total'))
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX window_budget_scope_idx ON window_budget (tenant_id, coalesce(api_key_id, ''), unit, window_kind);

-- API processes keep keys and tenants for some seconds and are told of changes, but not of last_used_at: each minute.
CREATE FUNCTION notify_changed_keys() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('tokenmill_keys', '');
        RETURN NULL;
    END
    $$;
CREATE TRIGGER api_key_notifies AFTER INSERT OR DELETE OR UPDATE OF
    tenant_id, key_hash, revoked_at, scopes, expires_at, previous_hash, previous_until
    ON api_key FOR EACH STATEMENT EXECUTE FUNCTION notify_changed_keys();
CREATE TRIGGER tenant_notifies AFTER UPDATE ON tenant FOR EACH STATEMENT EXECUTE FUNCTION notify_changed_keys();
