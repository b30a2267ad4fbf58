-- The functions of the outbox, as this version has them: created by `install`, replaced by
-- `upgrade`. The words in braces are names, checked before they are put in.
--
-- Rights: a writer may call emit(), emit_bytes() and attach(), and touch no table; so what writes
-- rows runs as the owner of the outbox (SECURITY DEFINER), with a search_path that no caller sets.
-- emit() and emit_bytes() name the schema of all they use instead: setting the search_path takes a
-- tenth of the time of a commit, and every writer pays it.
-- emit_row() does not: it turns rows of other tables into JSON, and that can call functions which the
-- owners of those tables wrote. `gapless outbox grant` gives the rights.

-- Writes one row with bytes as its payload; returns its seq. A delete needs no payload.
CREATE OR REPLACE FUNCTION {schema}.emit_bytes(
    topic text, key text, op text, event_id text DEFAULT NULL, payload bytea DEFAULT NULL,
    kind text DEFAULT NULL, reason text DEFAULT NULL, created_at timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $body$
DECLARE
    drawn bigint;
BEGIN
    INSERT INTO {schema}.{outbox}
        (op, event_id, topic_id, kind, created_at, effective_key, reason, payload)
    VALUES (
        emit_bytes.op, coalesce(emit_bytes.event_id, pg_catalog.gen_random_uuid()::pg_catalog.text),
        emit_bytes.topic, emit_bytes.kind, coalesce(emit_bytes.created_at, pg_catalog.now()),
        emit_bytes.key, emit_bytes.reason, emit_bytes.payload
    )
    RETURNING seq INTO drawn;
    RETURN drawn;
END
$body$;

-- The same with JSON as its payload.
CREATE OR REPLACE FUNCTION {schema}.emit(
    topic text, key text, op text, event_id text DEFAULT NULL, payload jsonb DEFAULT NULL,
    kind text DEFAULT NULL, reason text DEFAULT NULL, created_at timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $body$
DECLARE
    drawn bigint;
BEGIN
    INSERT INTO {schema}.{outbox}
        (op, event_id, topic_id, kind, created_at, effective_key, reason, payload)
    VALUES (
        emit.op, coalesce(emit.event_id, pg_catalog.gen_random_uuid()::pg_catalog.text),
        emit.topic, emit.kind, coalesce(emit.created_at, pg_catalog.now()),
        emit.key, emit.reason, pg_catalog.convert_to(emit.payload::pg_catalog.text, 'UTF8')
    )
    RETURNING seq INTO drawn;
    RETURN drawn;
END
$body$;

-- The trigger of attach(): arguments are topic, key column, kind (or nothing), and whether the
-- row itself is the payload. A changed key is a delete of the old one and an upsert of the new.
-- Calls are assigned, not performed: that saves a statement around each.
CREATE OR REPLACE FUNCTION {schema}.emit_row() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    before jsonb;
    after jsonb;
    drawn bigint;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        before := to_jsonb(OLD);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        after := to_jsonb(NEW);
    END IF;
    IF before IS NOT NULL
        AND (after IS NULL OR before -> TG_ARGV[1] IS DISTINCT FROM after -> TG_ARGV[1]) THEN
        drawn := {schema}.emit_bytes(
            TG_ARGV[0], before ->> TG_ARGV[1], 'delete', NULL, NULL, nullif(TG_ARGV[2], ''),
            lower(TG_OP));
    END IF;
    IF after IS NOT NULL THEN
        drawn := {schema}.emit_bytes(
            TG_ARGV[0], after ->> TG_ARGV[1], 'upsert', NULL,
            CASE WHEN TG_ARGV[3] = 'payload' THEN convert_to(after::text, 'UTF8') END,
            nullif(TG_ARGV[2], ''), lower(TG_OP));
    END IF;
    RETURN NULL;
END
$body$;

-- Emits every change of a table from now on, at the commit of the transaction that made it.
CREATE OR REPLACE FUNCTION {schema}.attach(
    target regclass, topic text, key_column name, kind text DEFAULT '', payload boolean DEFAULT true
) RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM pg_attribute
        WHERE attrelid = target AND attname = key_column AND NOT attisdropped AND attnum > 0
    ) THEN
        RAISE EXCEPTION 'table % has no column %', target, key_column
            USING HINT = 'name the column whose value is the key of the message';
    END IF;
    EXECUTE format(
        'CREATE CONSTRAINT TRIGGER {schema}_emit AFTER INSERT OR UPDATE OR DELETE ON %s '
        'DEFERRABLE INITIALLY DEFERRED FOR EACH ROW '
        'EXECUTE FUNCTION {schema}.emit_row(%L, %L, %L, %L)',
        target, topic, key_column, kind, CASE WHEN payload THEN 'payload' ELSE 'reference' END
    );
END
$body$;

CREATE OR REPLACE FUNCTION {schema}.detach(target regclass) RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
    EXECUTE format('DROP TRIGGER {schema}_emit ON %s', target);
END
$body$;

-- Whether this is the first time that the consumer does this event; to be called in the
-- transaction of what it does.
CREATE OR REPLACE FUNCTION {schema}.processed_once(consumer text, event_id text) RETURNS boolean
LANGUAGE plpgsql AS $body$
BEGIN
    INSERT INTO {schema}.processed (consumer, event_id)
    VALUES (processed_once.consumer, processed_once.event_id)
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$body$;

-- Makes the partitions that will be needed next; returns how many. What writers have drawn
-- already stays where it is: a new partition begins one partition further on.
CREATE OR REPLACE FUNCTION {schema}.make_partitions() RETURNS integer LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    ahead CONSTANT integer := 2;
    size bigint;
    drawn bigint;
    top bigint;
    made integer := 0;
    part text;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('{schema}.make_partitions')) THEN
        RETURN 0;
    END IF;
    SELECT partition_rows INTO size FROM {schema}.meta;
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO drawn FROM {schema}.{outbox}_seq_seq;
    SELECT coalesce(max(to_seq), 0) INTO top FROM {schema}.partitions;
    WHILE top <= drawn + (ahead - 1) * size LOOP
        IF top > 0 AND top <= drawn OR top = 0 AND drawn > 0 THEN
            top := (drawn / size + 2) * size;
        END IF;
        part := '{outbox}_' || top;
        EXECUTE format(
            'CREATE TABLE {schema}.%I (LIKE {schema}.{outbox} INCLUDING DEFAULTS '
            'INCLUDING CONSTRAINTS INCLUDING INDEXES)', part);
        EXECUTE format(
            'ALTER TABLE {schema}.{outbox} ATTACH PARTITION {schema}.%I '
            'FOR VALUES FROM (%s) TO (%s)', part, top, top + size);
        INSERT INTO {schema}.partitions VALUES (top, top + size, part);
        top := top + size;
        made := made + 1;
    END LOOP;
    RETURN made;
END
$body$;

-- Removes the oldest partition if its newest row is older than the retention, or old rows that
-- are in no partition of their own. Returns whether there may be more to remove. The floor
-- rises in the same transaction, so that no reader can miss rows without seeing why.
CREATE OR REPLACE FUNCTION {schema}.remove_old() RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    batch CONSTANT integer := 1000;
    oldest timestamptz;
    safe bigint;
    part {schema}.partitions;
    newest timestamptz;
    gone bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('{schema}.remove_old')) THEN
        RETURN false;
    END IF;
    SELECT clock_timestamp() - retention INTO oldest FROM {schema}.meta;
    SELECT safe_seq INTO safe FROM {schema}.fence;
    DELETE FROM {schema}.processed WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.processed WHERE processed_at < oldest LIMIT batch));
    WITH old AS (
        DELETE FROM {schema}.{outbox}_rest WHERE seq = ANY (ARRAY(
            SELECT seq FROM {schema}.{outbox}_rest
            WHERE ingested_at < oldest AND seq <= safe ORDER BY seq LIMIT batch))
        RETURNING seq
    )
    SELECT max(seq) INTO gone FROM old;
    IF gone IS NULL THEN
        SELECT * INTO part FROM {schema}.partitions WHERE to_seq <= safe ORDER BY from_seq LIMIT 1;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        EXECUTE format(
            'SELECT ingested_at FROM {schema}.%I ORDER BY seq DESC LIMIT 1', part.name
        ) INTO newest;
        IF newest >= oldest THEN
            RETURN false;
        END IF;
        EXECUTE format('DROP TABLE {schema}.%I', part.name);
        DELETE FROM {schema}.partitions WHERE from_seq = part.from_seq;
        gone := part.to_seq - 1;
    END IF;
    UPDATE {schema}.fence SET floor_seq = greatest(floor_seq, gone);
    RETURN true;
END
$body$;

-- The last number drawn. A SELECT from the sequence reads it without its lock: while nextval logs
-- ahead, it can see up to 32 numbers that are not drawn yet, and later ones would be passed over.
CREATE OR REPLACE FUNCTION {schema}.drawn() RETURNS bigint LANGUAGE sql AS $body$
    SELECT coalesce(pg_sequence_last_value('{schema}.{outbox}_seq_seq'::regclass), 0)
$body$;

-- One look of the fence: the last number drawn, and after it who holds the lock, prepared or not.
-- Without a life the server has crashed since the last look. Here, and in the functions below,
-- because plans are kept inside functions, also behind a pooler: planning would take five times
-- as long as looking.
CREATE OR REPLACE FUNCTION {schema}.look(OUT life text, OUT drawn bigint, OUT holders text)
LANGUAGE plpgsql AS $body$
BEGIN
    SELECT replace(l.id::text, '-', ''), {schema}.drawn()
    INTO look.life, look.drawn FROM {schema}.life l;
    SELECT string_agg(
        DISTINCT CASE WHEN pid IS NULL THEN 'prepared ' ELSE '' END || virtualtransaction, ','
    )
    INTO look.holders FROM pg_locks
    WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND relation IN (SELECT relid FROM pg_partition_tree('{schema}.{outbox}'));
END
$body$;

-- Publishes a bound and notifies; returns whether it did. It is on disk before it can be seen,
-- whatever the default is: what is settled must survive a crash, and with it every row and
-- number before it.
CREATE OR REPLACE FUNCTION {schema}.publish(safe bigint, life text) RETURNS boolean
LANGUAGE plpgsql AS $body$
BEGIN
    UPDATE {schema}.fence SET safe_seq = publish.safe, updated_at = clock_timestamp()
    WHERE safe_seq < publish.safe
      AND EXISTS (SELECT 1 FROM {schema}.life l WHERE l.id = publish.life::uuid);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
    PERFORM pg_notify('{schema}_{outbox}', publish.safe::text);
    RETURN true;
END
$body$;

-- What readers need to know about the outbox: the bound, what is removed, and the epochs.
CREATE OR REPLACE FUNCTION {schema}.source(
    OUT safe bigint, OUT floor bigint, OUT standby boolean, OUT epochs text
) LANGUAGE plpgsql AS $body$
BEGIN
    SELECT safe_seq, floor_seq, pg_is_in_recovery()
    INTO source.safe, source.floor, source.standby FROM {schema}.fence;
    SELECT string_agg(replace(id::text, '-', '') || ':' || after_seq, ',' ORDER BY number)
    INTO source.epochs FROM {schema}.epochs;
END
$body$;

-- Begins a new epoch if this is another server or timeline than that of the newest, or in any
-- case if so asked; tells whether. It starts after what is settled here, and the sequence
-- jumps, so that numbers that a lost server may have given out are not given again.
CREATE OR REPLACE FUNCTION {schema}.begin_epoch(reason text, always boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    jump CONSTANT bigint := 10000000;
    here record;
    newest {schema}.epochs;
    safe bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('{schema}.epochs'));
    SELECT system_identifier::text AS system,
           left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline
    INTO here FROM pg_control_system();
    SELECT * INTO newest FROM {schema}.epochs ORDER BY number DESC LIMIT 1;
    IF NOT always AND newest.system_identifier = here.system AND newest.timeline = here.timeline THEN
        RETURN false;
    END IF;
    SELECT safe_seq INTO safe FROM {schema}.fence;
    INSERT INTO {schema}.epochs (after_seq, system_identifier, timeline, reason)
    VALUES (safe, here.system, here.timeline, begin_epoch.reason);
    PERFORM setval('{schema}.{outbox}_seq_seq', greatest(safe, last_value) + jump)
    FROM {schema}.{outbox}_seq_seq;
    RETURN true;
END
$body$;

-- PostgreSQL lets everyone call a new function: here only those who are granted it.
REVOKE ALL ON FUNCTION
    {schema}.emit, {schema}.emit_bytes, {schema}.emit_row, {schema}.attach, {schema}.detach,
    {schema}.processed_once, {schema}.make_partitions, {schema}.remove_old, {schema}.drawn,
    {schema}.look, {schema}.publish, {schema}.source, {schema}.begin_epoch
FROM PUBLIC;
SELECT {schema}.make_partitions();
