CREATE TABLE browser_session (
    id TEXT NOT NULL,
    token_hash TEXT NOT NULL,
    principal_kind TEXT NOT NULL,
    principal_id TEXT NOT NULL,
    key_hash TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    last_seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    user_agent TEXT NOT NULL,
    CONSTRAINT browser_session_pkey PRIMARY KEY (id),
    CONSTRAINT browser_session_principal_kind_check CHECK (principal_kind IN ('key')),
    CONSTRAINT browser_session_token_hash_key UNIQUE (token_hash)
);
CREATE INDEX browser_session_principal_id_idx ON browser_session (principal_id);
DELETE FROM cookie_secret;
