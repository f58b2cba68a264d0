ALTER TABLE tenant ADD COLUMN max_bytes_per_minute BIGINT;
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
