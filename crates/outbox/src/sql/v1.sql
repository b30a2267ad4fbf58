-- Version 1 of the outbox. The words in braces are names, checked before they are put in.

CREATE SCHEMA IF NOT EXISTS {schema};

-- What this outbox is: its version, names and how much it keeps.
CREATE TABLE {schema}.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,
    outbox text NOT NULL,
    offsets text NOT NULL,
    channel text NOT NULL,
    partition_rows bigint NOT NULL CHECK (partition_rows > 0),
    retention interval NOT NULL
);
INSERT INTO {schema}.meta (version, outbox, offsets, channel, partition_rows, retention)
VALUES (1, '{outbox}', '{offsets}', '{schema}_{outbox}', {partition_rows}, interval '{retention_s} s');

-- A domain, not a check of the table: that is compiled again by every statement, at a tenth of
-- the price of a row.
CREATE DOMAIN {schema}.op AS text CHECK (VALUE IN ('upsert', 'delete'));

-- The rows. ALWAYS: nothing but the sequence gives numbers. CACHE 1: they are drawn in order.
CREATE TABLE {schema}.{outbox} (
    seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    op {schema}.op NOT NULL,
    event_id text NOT NULL,
    topic_id text NOT NULL,
    kind text,
    created_at timestamptz NOT NULL DEFAULT now(),
    ingested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    effective_key text,
    reason text,
    payload bytea,
    PRIMARY KEY (seq)
) PARTITION BY RANGE (seq);

-- Takes what no other partition takes, so that writers never fail for want of one.
CREATE TABLE {schema}.{outbox}_rest PARTITION OF {schema}.{outbox} DEFAULT;

CREATE TABLE {schema}.partitions (
    from_seq bigint PRIMARY KEY,
    to_seq bigint NOT NULL,
    name text NOT NULL
);

-- Up to safe_seq every row is settled; up to floor_seq rows are removed.
CREATE TABLE {schema}.fence (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    safe_seq bigint NOT NULL DEFAULT 0,
    floor_seq bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 10);
INSERT INTO {schema}.fence DEFAULT VALUES;

-- A crash of the server empties it: so it tells one life from the next.
CREATE UNLOGGED TABLE {schema}.life (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO {schema}.life DEFAULT VALUES;

-- Histories of the numbers: a promotion or a restore begins a new one.
CREATE TABLE {schema}.epochs (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    after_seq bigint NOT NULL,
    system_identifier text NOT NULL,
    timeline text NOT NULL,
    reason text NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO {schema}.epochs (after_seq, system_identifier, timeline, reason)
SELECT 0, system_identifier::text, left(pg_walfile_name(pg_current_wal_lsn()), 8), 'installed'
FROM pg_control_system();

-- Who runs the fence, and which consumer runs where.
CREATE TABLE {schema}.leases (
    role text PRIMARY KEY,
    holder uuid NOT NULL,
    application text NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 10);

CREATE TABLE {schema}.{offsets} (
    consumer text PRIMARY KEY,
    last_seq bigint NOT NULL CHECK (last_seq >= 0),
    epoch uuid,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 10);

-- For consumers that must do each event once: see {schema}.processed_once().
CREATE TABLE {schema}.processed (
    consumer text NOT NULL,
    event_id text NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX processed_by_time ON {schema}.processed USING brin (processed_at);

-- Rows that a consumer gave up on, with why.
CREATE TABLE {schema}.dead_letters (
    consumer text NOT NULL,
    seq bigint NOT NULL,
    op text NOT NULL,
    event_id text NOT NULL,
    topic_id text NOT NULL,
    kind text,
    effective_key text,
    reason text,
    payload bytea,
    attempts integer NOT NULL,
    error text NOT NULL,
    died_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, seq)
);

-- Writes one row with bytes as its payload; returns its seq. A delete needs no payload.
CREATE FUNCTION {schema}.emit_bytes(
    topic text, key text, op text, event_id text DEFAULT NULL, payload bytea DEFAULT NULL,
    kind text DEFAULT NULL, reason text DEFAULT NULL, created_at timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $body$
DECLARE
    drawn bigint;
BEGIN
    INSERT INTO {schema}.{outbox}
        (op, event_id, topic_id, kind, created_at, effective_key, reason, payload)
    VALUES (
        emit_bytes.op, coalesce(emit_bytes.event_id, gen_random_uuid()::text),
        emit_bytes.topic, emit_bytes.kind, coalesce(emit_bytes.created_at, now()),
        emit_bytes.key, emit_bytes.reason, emit_bytes.payload
    )
    RETURNING seq INTO drawn;
    RETURN drawn;
END
$body$;

-- The same with JSON as its payload.
CREATE FUNCTION {schema}.emit(
    topic text, key text, op text, event_id text DEFAULT NULL, payload jsonb DEFAULT NULL,
    kind text DEFAULT NULL, reason text DEFAULT NULL, created_at timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $body$
DECLARE
    drawn bigint;
BEGIN
    INSERT INTO {schema}.{outbox}
        (op, event_id, topic_id, kind, created_at, effective_key, reason, payload)
    VALUES (
        emit.op, coalesce(emit.event_id, gen_random_uuid()::text),
        emit.topic, emit.kind, coalesce(emit.created_at, now()),
        emit.key, emit.reason, convert_to(emit.payload::text, 'UTF8')
    )
    RETURNING seq INTO drawn;
    RETURN drawn;
END
$body$;

-- The trigger of attach(): arguments are topic, key column, kind (or nothing), and whether the
-- row itself is the payload. A changed key is a delete of the old one and an upsert of the new.
-- It writes rows by itself: a call of emit() would add a third to what a row costs.
CREATE FUNCTION {schema}.emit_row() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    before jsonb;
    after jsonb;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        before := to_jsonb(OLD);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        after := to_jsonb(NEW);
    END IF;
    IF before IS NOT NULL
        AND (after IS NULL OR before -> TG_ARGV[1] IS DISTINCT FROM after -> TG_ARGV[1]) THEN
        INSERT INTO {schema}.{outbox} (op, event_id, topic_id, kind, effective_key, reason)
        VALUES (
            'delete', gen_random_uuid()::text, TG_ARGV[0], nullif(TG_ARGV[2], ''),
            before ->> TG_ARGV[1], lower(TG_OP)
        );
    END IF;
    IF after IS NOT NULL THEN
        INSERT INTO {schema}.{outbox}
            (op, event_id, topic_id, kind, effective_key, reason, payload)
        VALUES (
            'upsert', gen_random_uuid()::text, TG_ARGV[0], nullif(TG_ARGV[2], ''),
            after ->> TG_ARGV[1], lower(TG_OP),
            CASE WHEN TG_ARGV[3] = 'payload' THEN convert_to(after::text, 'UTF8') END
        );
    END IF;
    RETURN NULL;
END
$body$;

-- Emits every change of a table from now on, at the commit of the transaction that made it.
CREATE FUNCTION {schema}.attach(
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

CREATE FUNCTION {schema}.detach(target regclass) RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
    EXECUTE format('DROP TRIGGER {schema}_emit ON %s', target);
END
$body$;

-- Whether this is the first time that the consumer does this event; to be called in the
-- transaction of what it does.
CREATE FUNCTION {schema}.processed_once(consumer text, event_id text) RETURNS boolean
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
CREATE FUNCTION {schema}.make_partitions() RETURNS integer LANGUAGE plpgsql AS $body$
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
SELECT {schema}.make_partitions();

-- Removes the oldest partition if its newest row is older than the retention, or old rows that
-- are in no partition of their own. Returns whether there may be more to remove. The floor
-- rises in the same transaction, so that no reader can miss rows without seeing why.
CREATE FUNCTION {schema}.remove_old() RETURNS boolean LANGUAGE plpgsql AS $body$
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
CREATE FUNCTION {schema}.drawn() RETURNS bigint LANGUAGE sql AS $body$
    SELECT coalesce(pg_sequence_last_value('{schema}.{outbox}_seq_seq'::regclass), 0)
$body$;

-- One look of the fence: the last number drawn, and after it who holds the lock, prepared or not.
-- Without a life the server has crashed since the last look. Here, and in the functions below,
-- because plans are kept inside functions, also behind a pooler: planning would take five times
-- as long as looking.
CREATE FUNCTION {schema}.look(OUT life text, OUT drawn bigint, OUT holders text)
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
CREATE FUNCTION {schema}.publish(safe bigint, life text) RETURNS boolean
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
CREATE FUNCTION {schema}.source(
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
CREATE FUNCTION {schema}.begin_epoch(reason text, always boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql AS $body$
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
