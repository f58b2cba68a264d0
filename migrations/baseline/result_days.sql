-- Days of `result` are made and dropped by two functions: who calls them needs no right to make or drop a table.
--
-- Both run as the owner of the schema. What they call is found in pg_catalog alone, and ours is named with its schema,
-- so that nothing a caller has made takes its place. A day is a date and no text, of four digits for its year: a name
-- is made of it and of nothing else.
-- CREATE and then ATTACH takes a SHARE UPDATE EXCLUSIVE lock on `result`, which stops neither reads nor inserts;
-- CREATE … PARTITION OF would take ACCESS EXCLUSIVE. DETACH stops every flush while it waits for those who read
-- `result`, so it gives up soon, to be tried again: its CONCURRENTLY keeps nobody waiting, and runs in no function.
DO $do$ BEGIN EXECUTE format($sql$
    CREATE OR REPLACE FUNCTION %1$I.make_result_partition(day date) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $function$
    DECLARE
        place constant text := %1$L;
        parent constant regclass := format('%%I.result', place)::regclass;
        partition constant text := 'result_' || to_char(day, 'YYYYMMDD');
        is_detaching boolean;
    BEGIN
        IF day IS NULL OR day < '2000-01-01' OR day > '9999-12-30' THEN
            RAISE EXCEPTION 'make_result_partition(%%): give a day of the years 2000 to 9999', day
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        PERFORM pg_advisory_xact_lock(hashtextextended('result partitions', 0));
        IF EXISTS (
            SELECT FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
            WHERE inhparent = parent AND relname = partition AND NOT inhdetachpending
        ) THEN
            RETURN false;
        END IF;
        EXECUTE format('CREATE TABLE %%1$I.%%2$I (LIKE %%1$I.result INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
            place, partition);
        EXECUTE format('ALTER TABLE %%1$I.result ATTACH PARTITION %%1$I.%%2$I FOR VALUES FROM (%%3$L) TO (%%4$L)',
            place, partition, day, day + 1);
        RETURN true;
    END
    $function$
$sql$, current_schema()); END $do$;
DO $do$ BEGIN EXECUTE format($sql$
    CREATE OR REPLACE FUNCTION %1$I.drop_result_partition(day date) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $function$
    DECLARE
        place constant text := %1$L;
        parent constant regclass := format('%%I.result', place)::regclass;
        partition constant text := 'result_' || to_char(day, 'YYYYMMDD');
        is_detaching boolean;
    BEGIN
        IF day IS NULL OR day < '2000-01-01' OR day > '9999-12-30' THEN
            RAISE EXCEPTION 'drop_result_partition(%%): give a day of the years 2000 to 9999', day
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        SELECT inhdetachpending INTO is_detaching FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
            WHERE inhparent = parent AND relname = partition;
        IF FOUND THEN
            EXECUTE format('ALTER TABLE %%1$I.result DETACH PARTITION %%1$I.%%2$I %%3$s',
                place, partition, CASE WHEN is_detaching THEN 'FINALIZE' ELSE '' END);
        ELSIF NOT EXISTS (
            SELECT FROM pg_class WHERE relname = partition AND relkind = 'r' AND NOT relispartition
                AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = parent)
        ) THEN
            RETURN false;
        END IF;
        EXECUTE format('DROP TABLE %%I.%%I', place, partition);
        RETURN true;
    END
    $function$
$sql$, current_schema()); END $do$;
REVOKE ALL ON FUNCTION make_result_partition(date) FROM PUBLIC;
REVOKE ALL ON FUNCTION drop_result_partition(date) FROM PUBLIC;
